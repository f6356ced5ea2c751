#!lua flags=no-writes
-- Counts the parked timers of destinations.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] park:{p}:c
-- ARGV[4] the destination's number to start at, ARGV[5] how many at most.
-- Answers: {'OK', {number, count, ...}, number to go on at or ''}
--@include prelude

local refused = fence(0)
if refused then return refused end
local from, limit, rows = tonumber(ARGV[4]), tonumber(ARGV[5]), {}
while true do
  local first = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('%.0f', from * 4294967296), '+inf', 'WITHSCORES',
    'LIMIT', 0, 1)
  if not first[2] then return {'OK', rows, ''} end
  local dest = math.floor(tonumber(first[2]) / 4294967296)
  if #rows / 2 == limit then return {'OK', rows, tostring(dest)} end
  local count = redis.call('ZCOUNT', KEYS[2], string.format('%.0f', dest * 4294967296),
    string.format('(%.0f', (dest + 1) * 4294967296))
  rows[#rows + 1], rows[#rows + 2] = tostring(dest), tostring(count)
  from = dest + 1
end
