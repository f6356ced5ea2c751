#!lua flags=allow-oom
-- Gives the lease up, if it still is the caller's.
--
-- KEYS[1] leader:{c}
-- ARGV[1] what it holds while it is the caller's
-- Answers: 1, or 0 if it is not the caller's

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
