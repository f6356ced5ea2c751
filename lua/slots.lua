-- Put behind prelude.lua in every script that applies operations or looks timers up, but file.lua and ack.lua: slots, and
-- the short way of removing pending timers. For all else timers.lua follows.
--
-- A script reads what it needs, decides on tables in memory, and writes at the very end, in `write`: so it is applied
-- whole or not at all, and the write that may empty a key is the last access to it.
--
-- KEYS[1]       owner:{p}:c            see prelude.lua
-- KEYS[2..4]    ended:{p}:c:<bucket>   hashes: the bucket before now's, now's, the one after: id -> how it ended,
--                                      'r' + request id -> answer
-- KEYS[5]       dead:{p}:c             sorted set: ids of dead letters by order of dying
-- KEYS[6]       taken:{p}:c            sorted set: ids of taken timers by order of taking, and of unconfirmed ones by 2^52 +
--                                      order of becoming so
-- KEYS[7]       park:{p}:c             sorted set: ids of parked timers by destination * 2^32 + order of parking
-- KEYS[8..]     moved:{p}:c:<shelf>    hashes, those of the declared ids: id -> where a timer is that is not at its birth
--                                      position:
--                                      's' slot name | 'p' record | 't' epoch(8) zero(1) record |
--                                      'u' epoch(8) since when(6) record |
--                                      'd' reason(1) died(6) record
-- then          key:{p}:c:<shelf>      hashes, all or none: destination number ':' application key -> id
-- then          indexes of slots (sorted sets: slot name by start), then slot:{p}:c:<name> (hashes: id -> record;
--               a timer that is not at its birth position has 128 + tier (1), fire time (6) before the record)
--
-- ARGV[4] now, ms      ARGV[5] claim or ''       ARGV[6] prior claim, ms    ARGV[7] epoch, 8 bytes little endian
-- ARGV[8] for each shelf of moved, then for each of keys, its number in KEYS or 0 (1 byte each); KEYS before the first slot
--         (2 bytes, big endian); bytes of a slot's key before its name (1); for each slot the number of its index in
--         KEYS (2 bytes each, big endian)
-- ARGV[9] for each id: id (16), how many slots it may be in (1), their numbers, the likeliest first (2 bytes each, big endian)
-- from ARGV[FIRST] on: what the script itself wants
--
-- Besides the answers of prelude.lua: {'NEED', what, ...}: 's' slot name, 'i' id, 'k' id and the field of the key that names
-- it, or 'h': the keys, which has to be declared as well, or 'r': once more, a park is being renumbered;
-- otherwise nothing changed. {'OK', answers, lengths}: the operations' answers one after another; for each slot that
-- was written its number (2 bytes) and length (4 bytes, both little endian).

local PRIOR, LAYOUT, FIRST = tonumber(ARGV[6]), ARGV[8], 10
local byte, sub, call = string.byte, string.sub, redis.call

local SLOT0, NAME0
do
  local high, low, prefix = byte(LAYOUT, 33, 35)
  SLOT0, NAME0 = high * 256 + low, prefix + 1
end

-- Slots where declared ids may be; timers as far as timers.lua has them; in which slot an id was found, with which value, or its
-- entry of moved.
local cands, timers, slot_at, value_at, in_moved = {}, {}, {}, {}, {}
-- Lengths of slots, as far as they were read; buckets of ended that exist; what they remember, as far as it was read.
local length_of, buckets, remembered = {}, nil, {}
-- What is to be written to slots and taken out of them and of moved.
local sets, added, dels, gone = {}, {}, {}, {}

local function push(map, key, value)
  local l = map[key]
  if l then l[#l + 1] = value else map[key] = {value} end
end

-- Reads some fields of a hash, and puts those that are there into `values`; and the hash's number, into `where`.
local function read(key, fields, values, where, number)
  for from = 1, #fields, 1000 do
    local found = call('HMGET', key, unpack(fields, from, math.min(from + 999, #fields)))
    for i = 1, #found do
      local v = found[i]
      if v then
        local field = fields[from + i - 1]
        values[field] = v
        if where then where[field] = number end
      end
    end
  end
end

-- Reads everything about the declared ids: what is in slots, the likeliest first, and for all others their entries of moved.
do
  local ids, at, by_slot, most = ARGV[9], 1, {}, 1
  while at < #ids do
    local id, count, high, low = sub(ids, at, at + 15), byte(ids, at + 16, at + 18)
    local behind = at + 17 + 2 * count
    cands[id] = sub(ids, at + 17, behind - 1)
    if count > 0 then push(by_slot, high * 256 + low, id) end
    if count > most then most = count end
    at = behind
  end
  for slot, fields in pairs(by_slot) do
    -- What is likeliest will mostly be written, too, and that needs the length.
    local key = KEYS[SLOT0 + slot]
    length_of[slot] = call('HLEN', key)
    if length_of[slot] > 0 then read(key, fields, value_at, slot_at, slot) end
  end
  for rank = 3, 2 * most - 1, 2 do
    by_slot = {}
    for id, list in pairs(cands) do
      if not slot_at[id] and rank < #list then
        local high, low = byte(list, rank, rank + 1)
        push(by_slot, high * 256 + low, id)
      end
    end
    for slot, fields in pairs(by_slot) do read(KEYS[SLOT0 + slot], fields, value_at, slot_at, slot) end
  end
  local exist, missing = {KEYS[2], KEYS[3], KEYS[4]}, nil
  for id in pairs(cands) do
    if not slot_at[id] then
      missing = missing or {}
      local key = KEYS[byte(LAYOUT, byte(id, 16) % 16 + 1)]
      if not missing[key] then exist[#exist + 1] = key end
      push(missing, key, id)
    end
  end
  if missing then
    if call('EXISTS', unpack(exist)) == 0 then
      buckets = {}
    else
      for key, fields in pairs(missing) do read(key, fields, in_moved) end
    end
  end
end

-- Reads what is remembered of ids (or 'r' + request ids), all at once.
local function recall(fields)
  if not buckets then
    buckets = {}
    for i = 2, 4 do
      if call('EXISTS', KEYS[i]) == 1 then buckets[#buckets + 1] = KEYS[i] end
    end
  end
  for _, field in ipairs(fields) do remembered[field] = false end
  -- The latest word counts.
  for _, bucket in ipairs(buckets) do read(bucket, fields, remembered) end
end

-- Enters what a slot gains and loses into `lengths`, and into `zadd` or `empty` if its index has to know.
local function weigh(slot, lengths, zadd, empty)
  local key = KEYS[SLOT0 + slot]
  local before = length_of[slot] or call('HLEN', key)
  local after = before + (added[slot] or 0) - (dels[slot] and #dels[slot] or 0)
  lengths[#lengths + 1] = struct.pack('<I2I4', slot, after)
  if (before == 0) ~= (after == 0) then
    local name, high, low = sub(key, NAME0), byte(LAYOUT, 34 + 2 * slot, 35 + 2 * slot)
    local index = KEYS[high * 256 + low]
    if after > 0 then push(zadd, index, start_of(name)) end
    push(after > 0 and zadd or empty, index, name)
  end
end

-- Writes slots, and what was to be written to `moved`, `zadd` and `zrem`; counts the script as applied and answers OK.
-- Indexes of slots first, then contents, then removals, then indexes of what is empty.
local function write(answers, zadd, moved, zrem, rest)
  local empty, lengths = {}, {}
  for slot in pairs(sets) do weigh(slot, lengths, zadd, empty) end
  for slot in pairs(dels) do
    if not sets[slot] then weigh(slot, lengths, zadd, empty) end
  end
  for key, l in pairs(zadd) do in_pieces('ZADD', key, l) end
  for slot, l in pairs(sets) do in_pieces('HSET', KEYS[SLOT0 + slot], l) end
  if moved then
    for key, l in pairs(moved) do in_pieces('HSET', key, l) end
  end
  for slot, l in pairs(dels) do in_pieces('HDEL', KEYS[SLOT0 + slot], l) end
  for key, l in pairs(gone) do in_pieces('HDEL', key, l) end
  if zrem then
    for key, l in pairs(zrem) do in_pieces('ZREM', key, l) end
  end
  for key, l in pairs(empty) do in_pieces('ZREM', key, l) end
  if rest then rest() end
  return done(table.concat(answers), table.concat(lengths), ARGV[5])
end
