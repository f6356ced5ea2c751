#!lua flags=allow-oom
-- Reads the facts of a cluster; fixes them when it is used for the first time.
--
-- KEYS[1] meta:{c}   hash: partitions, format, secret
-- ARGV[1] partitions of a new cluster; ARGV[2] its format; ARGV[3] its secret: 16 random bytes
-- Answers: {partitions stored, format stored, secret stored}, and a fourth element, 1, if this call
-- has fixed them

local stored = redis.call('HMGET', KEYS[1], 'partitions', 'format', 'secret')
if stored[1] then return {stored[1], stored[2] or '0', stored[3] or ''} end
redis.call('HSET', KEYS[1], 'partitions', ARGV[1], 'format', ARGV[2], 'secret', ARGV[3])
return {ARGV[1], ARGV[2], ARGV[3], 1}
