#!lua flags=allow-oom
-- Stores the topology for the next leader, if the lease still is the caller's.
--
-- KEYS[1] leader:{c}; KEYS[2] topology:{c}
-- ARGV[1] what the lease holds while it is the caller's; ARGV[2] the topology
-- Answers: 1, or 0 if the lease is not the caller's

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1
