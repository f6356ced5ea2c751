#!lua flags=allow-oom
-- Fixes the facts of a cluster when it is used for the first time.
--
-- KEYS[1] meta:{c}   hash: partitions, format
-- ARGV[1] partitions, '' for whatever is stored; ARGV[2] partitions of a new cluster; ARGV[3] format
-- Answers: {partitions stored, format stored}

local o = redis.call('HMGET', KEYS[1], 'partitions', 'format')
if o[1] then return {o[1], o[2] or '0'} end
local partitions = ARGV[1] == '' and ARGV[2] or ARGV[1]
redis.call('HSET', KEYS[1], 'partitions', partitions, 'format', ARGV[3])
return {partitions, ARGV[3]}
