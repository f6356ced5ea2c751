#!lua flags=allow-oom
-- Says who has the lease, and takes nothing.
--
-- KEYS[1] leader:{c}     'address incarnation term', expires by itself
-- Answers: {'FREE'} or
--          {'HELD', what the key holds, ms until it expires or -1}

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  -- Not a string: mtimer has not written it.
  held = 'a ' .. redis.call('TYPE', KEYS[1])['ok']
end
if not held then return {'FREE'} end
return {'HELD', held, redis.call('PTTL', KEYS[1])}
