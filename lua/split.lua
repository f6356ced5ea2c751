#!lua flags=allow-oom
-- Moves the timers of a wide slot into narrower ones.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua.
-- KEYS[2..17] moved:{p}:c:<shelf>, see timers.lua; KEYS[18] the slot, KEYS[19] the index it is in
-- KEYS[20], KEYS[22], ... the index of a narrower slot, KEYS[21], KEYS[23], ... the narrower slot
-- ARGV[4] the name of the slot. ARGV[5] number of narrower slots, then for each: its start (ms), its name;
-- then for each timer: id (16), the number of its narrower slot.
-- Answers: {'OK', '', lengths}: see timers.lua; number 0 is the slot itself
--@include prelude

local refused = fence(1)
if refused then return refused end

local count = tonumber(ARGV[5])
local sets, gone, moved, added, lengths = {}, {}, {}, {}, {}
for i = 6 + 2 * count, #ARGV, 2 do
  local id, slot = ARGV[i], tonumber(ARGV[i + 1])
  local v = redis.call('HGET', KEYS[18], id)
  if v then
    local l = sets[slot]
    if not l then
      l = {}
      sets[slot] = l
    end
    l[#l + 1] = id
    l[#l + 1] = v
    gone[#gone + 1] = id
    if string.byte(v, 1) >= 128 then
      local key = KEYS[2 + string.byte(id, 16) % 16]
      moved[key] = moved[key] or {}
      table.insert(moved[key], id)
      table.insert(moved[key], 's' .. ARGV[5 + 2 * slot])
    end
  end
end
local left = redis.call('HLEN', KEYS[18]) - #gone
lengths[1] = struct.pack('<I2I4', 0, left)
for slot = 1, count do
  local before = redis.call('HLEN', KEYS[19 + 2 * slot])
  local after = before + (sets[slot] and #sets[slot] / 2 or 0)
  lengths[slot + 1] = struct.pack('<I2I4', slot, after)
  if before == 0 and after > 0 then added[#added + 1] = slot end
end
for _, slot in ipairs(added) do
  redis.call('ZADD', KEYS[18 + 2 * slot], ARGV[4 + 2 * slot], ARGV[5 + 2 * slot])
end
for slot, l in pairs(sets) do in_pieces('HSET', KEYS[19 + 2 * slot], l) end
for key, l in pairs(moved) do in_pieces('HSET', key, l) end
in_pieces('HDEL', KEYS[18], gone)
if left == 0 then redis.call('ZREM', KEYS[19], ARGV[4]) end
lengths = table.concat(lengths)
applied('\0\0\0\0' .. lengths, '')
return {'OK', '', lengths}
