#!lua flags=allow-oom
-- Writes the sequence number of the owner record again, as it is, if the partition is the caller's:
-- WAIT covers what a server carried out before the last write of its own connection.
--
-- KEYS[1]  owner:{p}:c   hash: e epoch, n nonce, s sequence number, ...
-- ARGV[1] epoch, ARGV[2] nonce
-- Answers: {epoch, nonce, sequence number} as they are stored, with nil for what is not
local owner = redis.call('HMGET', KEYS[1], 'e', 'n', 's')
if owner[1] == ARGV[1] and owner[2] == ARGV[2] and owner[3] then
  redis.call('HSET', KEYS[1], 's', owner[3])
end
return owner
