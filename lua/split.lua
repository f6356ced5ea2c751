#!lua flags=allow-oom
-- Moves timers of wide slots into narrower ones.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua.
-- KEYS[2..17] moved:{p}:c:<shelf>, see timers.lua
-- KEYS[18], KEYS[20], ... the index of a slot, KEYS[19], KEYS[21], ... the slot: first the wide ones, then the narrower ones
-- ARGV[4] number of wide slots. From ARGV[5] for each slot: its start (ms), its name. The last of ARGV for each timer: id (16), the numbers
-- of its wide (1) and of its narrower slot (1), from 1 each.
-- Answers: {'OK', '', lengths}: see slots.lua; numbers are those of the slots in KEYS
--@include prelude

local refused = fence(1)
if refused then return refused end

local byte, sub, call = string.byte, string.sub, redis.call
local WIDE, SLOTS, moves = ARGV[4] + 0, (#KEYS - 17) / 2, ARGV[#ARGV]
local by_wide, target_of = {}, {}
for at = 1, #moves, 18 do
  local id, from, to = sub(moves, at, at + 15), byte(moves, at + 16, at + 17)
  local l = by_wide[from]
  if l then l[#l + 1] = id else by_wide[from] = {id} end
  target_of[id] = to
end

local sets, moved, gone, lengths = {}, {}, {}, {}
for from = 1, WIDE do
  local ids, found = by_wide[from], {}
  local values = call('HMGET', KEYS[17 + 2 * from], unpack(ids))
  for i = 1, #ids do
    local id, v = ids[i], values[i]
    if v then
      local slot = WIDE + target_of[id]
      local l = sets[slot]
      if not l then
        l = {}
        sets[slot] = l
      end
      l[#l + 1] = id
      l[#l + 1] = v
      found[#found + 1] = id
      if byte(v, 1) >= 128 then
        local key = KEYS[2 + byte(id, 16) % 16]
        moved[key] = moved[key] or {}
        table.insert(moved[key], id)
        table.insert(moved[key], 's' .. ARGV[4 + 2 * slot])
      end
    end
  end
  gone[from] = found
end
-- Indexes of slots first, then contents, then removals, then indexes of what is empty.
local added = {}
for slot = WIDE + 1, SLOTS do
  local before = call('HLEN', KEYS[17 + 2 * slot])
  local gained = sets[slot] and #sets[slot] / 2 or 0
  lengths[slot] = struct.pack('<I2I4', slot, before + gained)
  if before == 0 and gained > 0 then added[#added + 1] = slot end
end
for from = 1, WIDE do
  lengths[from] = struct.pack('<I2I4', from, call('HLEN', KEYS[17 + 2 * from]) - #gone[from])
end
for _, slot in ipairs(added) do call('ZADD', KEYS[16 + 2 * slot], ARGV[3 + 2 * slot], ARGV[4 + 2 * slot]) end
for slot, l in pairs(sets) do call('HSET', KEYS[17 + 2 * slot], unpack(l)) end
for key, l in pairs(moved) do call('HSET', key, unpack(l)) end
for from = 1, WIDE do
  if #gone[from] > 0 then call('HDEL', KEYS[17 + 2 * from], unpack(gone[from])) end
end
for from = 1, WIDE do
  if struct.unpack('<I4', lengths[from], 3) == 0 then call('ZREM', KEYS[16 + 2 * from], ARGV[4 + 2 * from]) end
end
lengths = table.concat(lengths)
applied('\0\0\0\0' .. lengths, '')
return {'OK', '', lengths}
