#!lua flags=allow-oom
-- Removes the oldest dead letters.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- ARGV[FIRST] those that died before (ms), ARGV[FIRST + 1] how many to keep, ARGV[FIRST + 2] how many at most now.
-- Answers: 'Y' removed (4, little endian) more ('1', '0')
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local before, keep, limit = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2])
local surplus = redis.call('ZCARD', KEYS[5]) - keep
local removed, more = 0, '0'
local oldest = redis.call('ZRANGE', KEYS[5], 0, limit)
for _, id in ipairs(oldest) do cands[id], in_moved[id] = '', call('HGET', moved_key(id), id) end
for i, id in ipairs(oldest) do
  local t = timer(id)
  if t.kind and i > surplus and not (t.kind == 'd' and t.died < before) then break end
  if removed == limit then
    more = '1'
    break
  end
  if t.kind then
    purge(t)
  else
    -- The index names what is not there.
    t.was_kind = 'd'
  end
  removed = removed + 1
end
return finish({'Y' .. struct.pack('<I4', removed) .. more})
