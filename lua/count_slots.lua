#!lua flags=no-writes
-- Counts the timers in slots.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2..] slots, at most 500.
-- Answers: {'OK', count, ...}
--@include prelude

local refused = fence(0)
if refused then return refused end
local answer = {'OK'}
for i = 2, #KEYS do answer[i] = redis.call('HLEN', KEYS[i]) end
return answer
