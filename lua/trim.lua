#!lua flags=allow-oom
-- Removes the oldest dead letters, or the oldest unconfirmed timers.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- ARGV[FIRST] those retained since before (ms), ARGV[FIRST + 1] how many to keep, ARGV[FIRST + 2] how many at most now,
-- ARGV[FIRST + 3] 'd' dead letters, 'u' unconfirmed timers.
-- Answers: 'Y' removed (4, little endian) more ('1', '0')
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local before, keep, limit = tonumber(ARGV[FIRST]), tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2])
local kind = ARGV[FIRST + 3]
local index, low = KEYS[5], '-inf'
if kind == 'u' then index, low = KEYS[6], string.format('%.0f', UNCONFIRMED) end
local surplus = redis.call('ZCOUNT', index, low, '+inf') - keep
local removed, more = 0, '0'
local oldest = redis.call('ZRANGEBYSCORE', index, low, '+inf', 'LIMIT', 0, limit + 1)
for _, id in ipairs(oldest) do cands[id], in_moved[id] = '', call('HGET', moved_key(id), id) end
for i, id in ipairs(oldest) do
  local t = timer(id)
  local since = retained_since(t)
  if t.kind and i > surplus and not (since and since < before) then break end
  if removed == limit then
    more = '1'
    break
  end
  if since then
    purge(t)
  else
    -- The index names what is not there.
    t.was_kind = kind
  end
  removed = removed + 1
end
return finish({'Y' .. struct.pack('<I4', removed) .. more})
