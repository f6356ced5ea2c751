#!lua flags=allow-oom
-- Gives destinations their numbers.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua.
-- KEYS[2] dest:{p}:c   hash: number -> group, zero byte, app
-- From ARGV[4]: number, name, number, name, ...
-- Answers: {'OK', '', ''}
--@include prelude

local refused = fence(1)
if refused then return refused end
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
applied('\0\0\0\0', '')
return {'OK', '', ''}
