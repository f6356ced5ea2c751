#!lua flags=allow-oom
-- Reads the facts of a cluster; fixes them when it is used for the first time.
--
-- KEYS[1] meta:{c}   hash: partitions, format
-- ARGV[1] partitions of a new cluster; ARGV[2] format of a new cluster
-- Answers: {partitions stored, format stored}

local stored = redis.call('HMGET', KEYS[1], 'partitions', 'format')
if stored[1] then return {stored[1], stored[2] or '0'} end
redis.call('HSET', KEYS[1], 'partitions', ARGV[1], 'format', ARGV[2])
return {ARGV[1], ARGV[2]}
