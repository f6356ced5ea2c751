#!lua flags=no-writes
-- Lists the ids of slots.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2..] the slots.
-- ARGV[4] ids of a slot that are told at most.
-- Answers: {'OK', ids, ...}: those of each slot one after another, or false if they are too many
--@include prelude

local refused = fence(0)
if refused then return refused end
local most, answer = ARGV[4] + 0, {'OK'}
for i = 2, #KEYS do
  answer[i] = redis.call('HLEN', KEYS[i]) <= most and table.concat(redis.call('HKEYS', KEYS[i]))
end
return answer
