#!lua
-- For turns that add: refused while the store is out of memory.
--@include apply_body
