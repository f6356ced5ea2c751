#!lua flags=allow-oom
-- Leaves word of deliveries under way.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. ARGV[4] deliveries under way.
-- Answers: {'OK', '', ''}
--@include prelude

local refused = fence(1)
if refused then return refused end
redis.call('HSET', KEYS[1], 'f', ARGV[4])
applied('\0\0\0\0', '')
return {'OK', '', ''}
