#!lua flags=allow-oom
-- Takes the lease, if nobody else has it.
--
-- KEYS[1] leader:{c}   'address incarnation term', runs out by itself
-- KEYS[2] term:{c}
-- KEYS[3] topology:{c}
-- ARGV[1] address; ARGV[2] incarnation; ARGV[3] how long the lease is to last, ms; ARGV[4] a term that a new one is above
-- Answers: {'WON', term, topology or nil} or {'HELD', what the key holds, ms until it runs out or -1}

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
    -- Not even text: somebody else's.
    return {'HELD', 'a ' .. redis.call('TYPE', KEYS[1])['ok'], redis.call('PTTL', KEYS[1])}
end
local term
if held then
    local address, incarnation, of = string.match(held, '^(%S+) (%d+) (%d+)$')
    if address ~= ARGV[1] then return {'HELD', held, redis.call('PTTL', KEYS[1])} end
    -- The same address is the same process, or an earlier life of it.
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
