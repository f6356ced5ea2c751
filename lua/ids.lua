#!lua flags=no-writes
-- Lists the ids of slots.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2..] the slots.
-- ARGV[4] ids of a slot that are told at most.
-- Answers: {'OK', ids, ...}: those of each slot one after another, or false if they are too many, or one of them is no id
--@include prelude

local refused = fence(0)
if refused then return refused end
local most, answer = ARGV[4] + 0, {'OK'}
local function told(key)
  if redis.call('HLEN', key) > most then return false end
  local ids = redis.call('HKEYS', key)
  for i = 1, #ids do
    if #ids[i] ~= 16 then return false end
  end
  return table.concat(ids)
end
for i = 2, #KEYS do answer[i] = told(KEYS[i]) end
return answer
