#!lua flags=no-writes
-- Counts everything of a partition but its slots.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] park, KEYS[3] taken, KEYS[4] dead, KEYS[5..20] keys, KEYS[21..36] moved,
-- KEYS[37..] indexes of slots
-- Answers: {'OK', parked, taken, dead, keys, moved, slots in indexes}
--@include prelude

local refused = fence(0)
if refused then return refused end
local keys, moved, slots = 0, 0, 0
for i = 5, 20 do keys = keys + redis.call('HLEN', KEYS[i]) end
for i = 21, 36 do moved = moved + redis.call('HLEN', KEYS[i]) end
for i = 37, #KEYS do slots = slots + redis.call('ZCARD', KEYS[i]) end
return {'OK', redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]), keys, moved, slots}
