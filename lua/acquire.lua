#!lua flags=allow-oom
-- Makes the caller the partition's only writer.
--
-- KEYS[1] owner:{p}:c   hash: e epoch, n nonce, s sequence number, t term, v version,
--                       c claimed-until (ms), p claimed-until as it was at the acquisition,
--                       pe, ps epoch and sequence number that this acquisition found,
--                       f deliveries under way at the last release, r 1: released gracefully,
--                       o the highest position given in a listing
-- ARGV[1] the epoch expected, ARGV[2] the nonce, ARGV[3] term, ARGV[4] version,
-- ARGV[5] the highest epoch that the caller's cluster has seen: the new one is above it
-- Answers: {'EPOCH', epoch stored} | {'ASSIGNMENT', term stored, version stored} |
--          {'OK', epoch, prior claim, sequence number, deliveries under way, highest position}
local o = redis.call('HMGET', KEYS[1], 'e', 'n', 't', 'v', 'c', 'p', 's', 'f', 'o')
local epoch, term, version = o[1] or '0', o[3] or '0', o[4] or '0'
local prior, sequence, in_flight, position = o[6] or '0', o[7] or '0', o[8] or '', o[9] or '0'
if o[2] == ARGV[2] then return {'OK', epoch, prior, sequence, in_flight, position} end
if epoch ~= ARGV[1] then return {'EPOCH', epoch} end
local t, v = tonumber(ARGV[3]), tonumber(ARGV[4])
if t < tonumber(term) or (t == tonumber(term) and v <= tonumber(version)) then
  return {'ASSIGNMENT', term, version}
end
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local new = string.format('%.0f', math.max(tonumber(epoch) + 1, tonumber(ARGV[5]) + 1, ms))
local claimed = o[5] or '0'
redis.call('HSET', KEYS[1], 'e', new, 'n', ARGV[2], 's', '0', 't', ARGV[3], 'v', ARGV[4],
  'c', claimed, 'p', claimed, 'pe', epoch, 'ps', sequence)
redis.call('HDEL', KEYS[1], 'r')
return {'OK', new, claimed, '0', in_flight, position}
