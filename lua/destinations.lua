#!lua flags=no-writes
-- Reads destinations by number.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] dest:{p}:c   hash: number -> group, zero byte, app
-- From ARGV[4]: numbers.
-- Answers: {'OK', {name or false, ...}}
--@include prelude

local refused = fence(0)
if refused then return refused end
return {'OK', redis.call('HMGET', KEYS[2], unpack(ARGV, 4))}
