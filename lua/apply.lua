#!lua
-- Applies the writes of one turn. It is loaded twice: as `apply`, and as
-- `apply_freeing` with the flag allow-oom (crates/store-redis/src/wire/script.rs).
--
-- KEYS[1]  owner:{p}:c   hash: e epoch, n nonce, s sequence number, c claimed-until (ms), ...
-- KEYS[2..]              the keys that are written
-- ARGV[1] epoch, ARGV[2] nonce, ARGV[3] the sequence number that must be stored,
-- ARGV[4] the sequence number to store; equal to ARGV[3] if there are no commands: only the owner
--         is checked
-- ARGV[5..] commands: number of arguments behind the key, command, number of its key, arguments
--
-- Commands are Redis commands, and three of this script's own. Each of them may be repeated without
-- harm:
--   TAKEOUT  on a hash: number of its index among KEYS, its member there, fields ...
--            deletes the fields; removes the member from the index if nothing is left in the hash
--   ZTAKEOUT on a sorted set: the same with members in place of fields
--   FREE     on a hash: field, value, field, value, ...
--            deletes the fields that have these values. The field '' holds a large value, so that
--            Redis keeps the hash as a hash table; it is deleted with the last other field
-- The caller sends only Redis commands that may be repeated, too, each with about 1,000 arguments
-- at most.
--
-- Answers: {'OK', command number, removed, left, ...}   for each TAKEOUT, ZTAKEOUT and FREE
--          {'SEQ', epoch, nonce, sequence number}       what is stored, if it is not what ARGV
--                                                       says; nothing changed
local call, argv, keys = redis.call, ARGV, KEYS
local owner = call('HMGET', keys[1], 'e', 'n', 's')
if owner[1] ~= argv[1] or owner[2] ~= argv[2] or owner[3] ~= argv[3] then
  return {'SEQ', owner[1] or '0', owner[2] or '0', owner[3] or '0'}
end

local answer = {'OK'}

-- Removes members from a collection, and the collection from its index if that empties it. The
-- length is read first: once a key that is being migrated is empty, touching it ends the script.
local function take_out(number, length, remove, key, first, last)
  local index, name = keys[argv[first] + 0], argv[first + 1]
  local before = call(length, key)
  local removed = call(remove, key, unpack(argv, first + 2, last))
  if removed == before then call('ZREM', index, name) end
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = number, removed, before - removed
end

local function free(number, key, first, last)
  local fields, stale = {}, {}
  for i = first, last, 2 do fields[#fields + 1] = argv[i] end
  local values = call('HMGET', key, unpack(fields))
  for i = 1, #fields do
    if values[i] == argv[first + 2 * i - 1] then stale[#stale + 1] = fields[i] end
  end
  local before = call('HLEN', key)
  if #stale == before - 1 then stale[#stale + 1] = '' end
  local removed = #stale > 0 and call('HDEL', key, unpack(stale)) or 0
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = number, removed, before - removed
end

local i, last, number = 5, #argv, 0
while i <= last do
  local command, key, first, to = argv[i + 1], keys[argv[i + 2] + 0], i + 3, i + 2 + argv[i]
  number = number + 1
  if command == 'TAKEOUT' then
    take_out(number, 'HLEN', 'HDEL', key, first, to)
  elseif command == 'ZTAKEOUT' then
    take_out(number, 'ZCARD', 'ZREM', key, first, to)
  elseif command == 'FREE' then
    free(number, key, first, to)
  else
    call(command, key, unpack(argv, first, to))
  end
  i = to + 1
end
if argv[3] ~= argv[4] then call('HSET', keys[1], 's', argv[4]) end
return answer
