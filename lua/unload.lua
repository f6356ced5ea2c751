#!lua flags=allow-oom
-- Puts slots back that have left the owner's wheel. May be repeated, so its answer is not kept.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] copy:{p}:c, KEYS[3] list:{p}:c
-- From ARGV[4] for each slot: its start (ms), its name; at most 400.
-- Answers: {'OK', '', ''}
--@include prelude

local refused = fence(1)
if refused then return refused end
local names = {}
for i = 5, #ARGV, 2 do names[#names + 1] = ARGV[i] end
redis.call('ZADD', KEYS[3], unpack(ARGV, 4))
redis.call('ZREM', KEYS[2], unpack(names))
applied(nil, '')
return {'OK', '', ''}
