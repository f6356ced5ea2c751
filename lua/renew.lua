#!lua flags=allow-oom
-- Extends the lease, if it still is the caller's.
--
-- KEYS[1] leader:{c}
-- ARGV[1] what it holds while it is the caller's; ARGV[2] how long it lasts from now on, ms
-- Answers: 1, or 0 if it is not the caller's

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
