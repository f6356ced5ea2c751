#!lua flags=allow-oom
-- Removes acknowledged timers in the case that is common: all are pending at their birth positions, none has a key or leaves a word of how it
-- ended. Leaves to settle.lua what it finds to be otherwise.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua.
-- KEYS[2..]  indexes of slots, then slot:{p}:c:<name>
--
-- ARGV[4] claim or ''
-- ARGV[5] KEYS before the first slot (1), bytes of a slot's key before its name (1); then for each slot the number of its index in KEYS (1),
--         how many timers leave it (1)
-- ARGV[6] on: ids, slot by slot; none comes twice
-- Answers: see prelude.lua. {'NEED', 'p'}: settle.lua; nothing changed. {'OK', answers, lengths}: see slots.lua; answers: 'D' done
--@include prelude

local refused = fence(1)
if refused then return refused end

local byte, call = string.byte, redis.call
local LAYOUT, FIRST = ARGV[5], 6
local SLOT0, prefix = byte(LAYOUT, 1, 2)
local SLOTS = (#LAYOUT - 2) / 2

local from = FIRST
for slot = 1, SLOTS do
  local n = byte(LAYOUT, 2 + 2 * slot)
  local values = call('HMGET', KEYS[SLOT0 + slot], unpack(ARGV, from, from + n - 1))
  for i = 1, n do
    local flags = values[i] and byte(values[i], 1)
    -- Not at its birth position (see slots.lua); at most once, with a key (the two lowest bits of a record's flags).
    if not flags or flags >= 128 or flags % 4 ~= 0 then return {'NEED', 'p'} end
  end
  from = from + n
end
local lengths = {}
from = FIRST
for slot = 1, SLOTS do
  local key = KEYS[SLOT0 + slot]
  local index, n = byte(LAYOUT, 1 + 2 * slot, 2 + 2 * slot)
  local length = call('HLEN', key) - n
  call('HDEL', key, unpack(ARGV, from, from + n - 1))
  if length == 0 then call('ZREM', KEYS[index], string.sub(key, prefix + 1)) end
  lengths[2 * slot - 1], lengths[2 * slot] = slot, length
  from = from + n
end
lengths = struct.pack('<' .. string.rep('I2I4', SLOTS), unpack(lengths))
return done(string.rep('D', #ARGV - FIRST + 1), lengths, ARGV[4])
