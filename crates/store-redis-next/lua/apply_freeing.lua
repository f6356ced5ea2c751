#!lua flags=allow-oom
-- For turns that add nothing: confirmations, claims, removals, repeats of what was applied before.
--@include apply_body
