#!lua flags=allow-oom
-- Raises claimed-until.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. ARGV[4] claimed-until, ms.
-- Answers: {'OK', '', ''}
--@include prelude

local refused = fence(1)
if refused then return refused end
applied('\0\0\0\0', ARGV[4])
return {'OK', '', ''}
