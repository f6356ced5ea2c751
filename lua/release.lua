#!lua flags=allow-oom
-- Gives the partition up: leaves word of deliveries under way, takes this reign's claims back.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. ARGV[4] deliveries under way.
-- Answers: {'OK', '', ''}
--@include prelude

local refused = fence(1)
if refused then return refused end
-- What was claimed beside the deliveries under way was not sent.
local prior = redis.call('HGET', KEYS[1], 'p')
redis.call('HSET', KEYS[1], 'f', ARGV[4], 'r', '1', 'c', prior or '0')
applied('\0\0\0\0', '')
return {'OK', '', ''}
