#!lua flags=allow-oom
-- Takes the lease, if nobody else has it.
--
-- KEYS[1] leader:{c}     'address incarnation term', expires by itself
-- KEYS[2] term:{c}
-- KEYS[3] topology:{c}
-- ARGV[1] address; ARGV[2] incarnation; ARGV[3] how long the lease lasts, ms;
-- ARGV[4] a term that a new one must exceed
-- Answers: {'WON', term, topology or nil} or
--          {'HELD', what the key holds, ms until it expires or -1}

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  -- Not a string: mtimer has not written it.
  return {'HELD', 'a ' .. redis.call('TYPE', KEYS[1])['ok'], redis.call('PTTL', KEYS[1])}
end
local term
if held then
  local address, incarnation, of = string.match(held, '^(%S+) (%d+) (%d+)$')
  if address ~= ARGV[1] then return {'HELD', held, redis.call('PTTL', KEYS[1])} end
  -- An address belongs to one process: this is the same process, or an earlier one that has ended.
  if incarnation == ARGV[2] then term = of end
end
local published = redis.call('GET', KEYS[3])
if not term then
  local now = redis.call('TIME')
  local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
  local last = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[4]))
  term = string.format('%.0f', math.max(last + 1, ms))
  redis.call('SET', KEYS[2], term)
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. term, 'PX', ARGV[3])
return {'WON', term, published}
