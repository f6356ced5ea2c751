#!lua flags=no-writes
-- Reads a page of the dead letters, of the taken or the unconfirmed timers, or of a destination's parked ones.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] dead:{p}:c, taken:{p}:c or park:{p}:c
-- KEYS[3..18] moved:{p}:c:<shelf>, see timers.lua
-- ARGV[4] lowest order, ARGV[5] highest order, ARGV[6] how many, ARGV[7] bytes after which to stop.
-- Answers: {'OK', {id, order, entry of moved, ...}, order of the next one or ''}
--@include prelude

local refused = fence(0)
if refused then return refused end
local limit, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local found = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[4], ARGV[5], 'WITHSCORES', 'LIMIT', 0, limit + 1)
local rows, bytes, next = {}, 0, ''
for i = 1, #found, 2 do
  if #rows / 3 == limit or bytes >= most then
    next = found[i + 1]
    break
  end
  local id = found[i]
  local m = redis.call('HGET', KEYS[3 + string.byte(id, 16) % 16], id)
  if m then
    rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = id, found[i + 1], m
    bytes = bytes + #m
  end
end
return {'OK', rows, next}
