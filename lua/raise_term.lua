#!lua flags=allow-oom
-- Raises the cluster's term.
--
-- KEYS[1] term:{c}
-- Answers: the new term, as text

local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local term = string.format('%.0f', math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, ms))
redis.call('SET', KEYS[1], term)
return term
