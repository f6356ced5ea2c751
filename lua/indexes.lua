#!lua flags=no-writes
-- Reads a page of each of some slot indexes.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2..] indexes of slots.
-- ARGV[4] rank to start at, ARGV[5] rank to end at.
-- Answers: {'OK', {name, ...}, ...}: a page of each
--@include prelude

local refused = fence(0)
if refused then return refused end
local answer = {'OK'}
for i = 2, #KEYS do answer[i] = redis.call('ZRANGE', KEYS[i], ARGV[4], ARGV[5]) end
return answer
