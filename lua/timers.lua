-- Put behind prelude.lua in every script that applies operations or looks timers up.
--
-- A script reads what it needs, decides on tables in memory, and writes at the very end, in `finish`: so it is applied
-- whole or not at all, and the write that may empty a key is the last access to it.
--
-- KEYS[1]       owner:{p}:c            see prelude.lua
-- KEYS[2..4]    ended:{p}:c:<bucket>   hashes: the bucket before now's, now's, the one after: id -> how it ended,
--                                      'r' + request id -> answer
-- KEYS[5]       dead:{p}:c             sorted set: ids of dead letters by order of dying
-- KEYS[6]       taken:{p}:c            sorted set: ids of taken timers by order of taking
-- KEYS[7]       park:{p}:c             sorted set: ids of parked timers by destination * 2^32 + order of parking
-- KEYS[8..23]   moved:{p}:c:<shelf>    hashes: id -> where a timer is that is not at its birth position:
--                                      's' slot name | 'p' record | 't' epoch(8) unconfirmed(1) record |
--                                      'd' reason(1) died(6) record
-- KEYS[24..39]  key:{p}:c:<shelf>      hashes: destination number ':' application key -> id
-- KEYS[40..]    indexes of slots (sorted sets: slot name by start), then slot:{p}:c:<name> (hashes: id -> record;
--               a timer that is not at its birth position has 128 + tier (1), fire time (6) before the record)
--
-- ARGV[4] now, ms      ARGV[5] claim or ''       ARGV[6] prior claim, ms    ARGV[7] epoch, 8 bytes little endian
-- ARGV[8] KEYS before the first slot             ARGV[9] bytes of a slot's key before its name
-- ARGV[10] for each slot the number of its index in KEYS (2 bytes, big endian)
-- ARGV[11] for each id: id (16), how many slots it may be in (1), their numbers (2 bytes each, big endian)
-- from ARGV[FIRST] on: what the script itself wants
--
-- Besides the answers of prelude.lua: {'NEED', what, ...}: 's' slot name, 'i' id, or 'k' id and the field of the key that names it, which has to
-- be declared as well;
-- nothing changed. {'OK', answers, lengths}: the operations' answers one after another; for each slot that
-- was written its number (2 bytes) and length (4 bytes, both little endian).

local NOW, PRIOR, EPOCH8 = tonumber(ARGV[4]), tonumber(ARGV[6]), ARGV[7]
local SLOT0, NAME0, INDEXES = tonumber(ARGV[8]), tonumber(ARGV[9]) + 1, ARGV[10]
local FIRST = 12
local DUE, DEADLINE, TIMEOUT, RETRY = 64, 4, 8, 16

local slot_of_name, cands, timers, keys, needs = nil, {}, {}, {}, {}
do
  local ids, at = ARGV[11], 1
  while at < #ids do
    local behind = at + 17 + 2 * string.byte(ids, at + 16)
    cands[string.sub(ids, at, at + 15)] = string.sub(ids, at + 17, behind - 1)
    at = behind
  end
end

-- A number of two bytes.
local byte, sub, call = string.byte, string.sub, redis.call
local function u16(s, at)
  local high, low = byte(s, at, at + 1)
  return high * 256 + low
end

-- Ids that are asked for through their keys.
local asked = {}

local function need(what) needs[#needs + 1] = what end

local function varint(s, at)
  local n, shift = 0, 1
  while true do
    local b = string.byte(s, at) or 0
    at = at + 1
    n = n + (b % 128) * shift
    if b < 128 then return n, at end
    shift = shift * 128
  end
end

-- Takes a record apart into a timer: progress, and the body behind it. One that cannot be is kept as it is in `raw`.
local function parse(t, rec)
  local flags = string.byte(rec, 1)
  if not flags or (bit.band(flags, 32) ~= 0 and #rec < 21) then
    t.raw, rec, flags = rec, '\0\0', 0
  end
  t.flags = flags
  if bit.band(flags, 32) ~= 0 then
    local len
    t.failed, t.budget, t.fresh, t.stopped, len = struct.unpack('<I4I4c8BI2', rec, 2)
    t.error = string.sub(rec, 22, 21 + len)
    t.body = string.sub(rec, 22 + len)
    t.flags = flags - 32
  else
    t.failed, t.budget, t.fresh, t.stopped, t.error = 0, 0, '\0\0\0\0\0\0\0\0', 0, ''
    t.body = string.sub(rec, 2)
  end
end

local function record(t)
  if t.raw then return t.raw end
  if t.failed == 0 and t.budget == 0 and t.stopped == 0 and t.error == '' and t.fresh == '\0\0\0\0\0\0\0\0' then
    return string.char(t.flags) .. t.body
  end
  return string.char(t.flags + 32) .. struct.pack('<I4I4', t.failed, t.budget) .. t.fresh
    .. struct.pack('<BI2B', t.stopped, #t.error, 0) .. t.error .. t.body
end

local function birth_due(id) return (struct.unpack('>I6', id)) end

-- A slot's value: with fire time and tier if the timer is not at its birth position.
local function parse_value(t, v)
  local b = string.byte(v, 1)
  if b and b >= 128 and #v >= 7 then
    t.born, t.tier, t.fire = false, b - 128, struct.unpack('<I6', v, 2)
    parse(t, string.sub(v, 8))
  else
    t.born, t.tier, t.fire = true, 0, birth_due(t.id)
    parse(t, v)
  end
end

local function moved_key(id) return KEYS[8 + byte(id, 16) % 16] end

-- The number of a slot by its name; nil if it is not declared.
local function slot_number(name)
  if not slot_of_name then
    slot_of_name = {}
    for i = 1, #INDEXES / 2 do slot_of_name[string.sub(KEYS[SLOT0 + i], NAME0)] = i end
  end
  return slot_of_name[name]
end

local function list_of(map, key)
  local l = map[key]
  if not l then
    l = {}
    map[key] = l
  end
  return l
end

-- Reads some fields of each of some hashes: calls `found` with hash, field and value for each that is there.
local function read_all(lists, key_of, found)
  for name, fields in pairs(lists) do
    for from = 1, #fields, 1000 do
      local to = math.min(from + 999, #fields)
      local values = call('HMGET', key_of(name), unpack(fields, from, to))
      for i = from, to do
        local value = values[i - from + 1]
        if value then found(name, fields[i], value) end
      end
    end
  end
end

-- Reads everything about the declared ids at once: what is in slots (in which one, with which value), and for all others
-- their entries of moved.
local slot_at, value_at, in_moved
local function prefetch()
  if slot_at then return end
  slot_at, value_at, in_moved = {}, {}, {}
  local by_slot, by_shelf = {}, {}
  for id, list in pairs(cands) do
    for i = 1, #list, 2 do
      local l = list_of(by_slot, u16(list, i))
      l[#l + 1] = id
    end
  end
  read_all(by_slot, function(slot) return KEYS[SLOT0 + slot] end, function(slot, id, v)
    slot_at[id], value_at[id] = slot, v
  end)
  for id in pairs(cands) do
    if not slot_at[id] then
      local l = list_of(by_shelf, moved_key(id))
      l[#l + 1] = id
    end
  end
  read_all(by_shelf, function(key) return key end, function(_, id, v) in_moved[id] = v end)
end

-- Reads where a timer is. kind: 's' pending in a slot, 'p' parked, 't' taken, 'd' dead, nil nowhere.
local function read_timer(t)
  local id = t.id
  if not cands[id] then
    if not asked[id] then need('i' .. id) end
    return
  end
  prefetch()
  if slot_at[id] then
    t.kind, t.slot = 's', slot_at[id]
    parse_value(t, value_at[id])
    t.was_moved = not t.born
    return
  end
  local m = in_moved[id]
  if not m then return end
  t.was_moved = true
  local kind = string.sub(m, 1, 1)
  if kind == 's' then
    local name = string.sub(m, 2)
    if not string.find(name, '^%d+%.[0-3]%.%d+%.%d+$') then return end
    local slot = slot_number(name)
    if not slot then return need('s' .. name) end
    local v = redis.call('HGET', KEYS[SLOT0 + slot], id)
    if not v then return end
    t.kind, t.slot = 's', slot
    return parse_value(t, v)
  end
  t.kind = kind
  if kind == 'p' then
    parse(t, string.sub(m, 2))
  elseif kind == 't' then
    t.by, t.unconfirmed = string.sub(m, 2, 9), string.byte(m, 10) == 1
    parse(t, string.sub(m, 11))
  elseif kind == 'd' and #m >= 8 then
    t.reason, t.died = struct.unpack('<BI6', m, 2)
    parse(t, string.sub(m, 9))
  else
    t.kind, t.reason, t.died = 'd', 0, 0
    parse(t, '')
    t.raw = m
  end
end

-- Short ways around the tables of timers, for what is done most. Behind them a timer is as if it had been read so.
local plain = {sets = {}, added = {}, dels = {}, gone = {}}

-- Whether nothing is known of a declared id.
local function unknown(id)
  return cands[id] and not timers[id] and not slot_at[id] and not in_moved[id]
end

-- Files a new timer at its birth position: without a key, above all prior claims.
local function file_plain(id, rec, slot)
  slot_at[id], value_at[id] = slot, rec
  local l = list_of(plain.sets, slot)
  l[#l + 1] = id
  l[#l + 1] = rec
  plain.added[slot] = (plain.added[slot] or 0) + 1
end

-- Removes a pending timer that has no key, nor leaves a word of how it ended. False if it is none.
local function remove_plain(id)
  local v = not timers[id] and value_at[id]
  if not v then return false end
  local flags, moved = byte(v, 1), false
  if flags and flags >= 128 then flags, moved = byte(v, 8), true end
  if not flags or flags % 4 ~= 0 then return false end
  local l = list_of(plain.dels, slot_at[id])
  l[#l + 1] = id
  if moved then
    l = list_of(plain.gone, moved_key(id))
    l[#l + 1] = id
  end
  slot_at[id], value_at[id] = nil, nil
  return true
end

-- The timer of an id, as it is at this point of the script.
local function timer(id)
  local t = timers[id]
  if not t then
    t = {id = id}
    timers[id] = t
    read_timer(t)
    t.was_kind, t.was_slot = t.kind, t.slot
  end
  return t
end

-- The number of a timer's destination, and the position behind it in the body.
local function dest(t) return varint(t.body, 1) end

-- The field under which a timer's key is kept, and the position behind it; nil if it has none.
local function key_field(t)
  local d, at = dest(t)
  if t.flags % 4 < 2 then return nil, at end
  local len
  len, at = varint(t.body, at)
  return d .. ':' .. string.sub(t.body, at, at + len - 1), at + len
end

local function key_key(field)
  local a, b, c = string.byte('\0' .. field, -3, -1)
  return KEYS[24 + (a * 31 + b * 7 + c + #field) % 16]
end

-- Which timer a key names, as it is at this point of the script.
local function holder(field)
  local k = keys[field]
  if not k then
    local id = redis.call('HGET', key_key(field), field)
    k = {id = id, was = id}
    keys[field] = k
  end
  return k.id
end

local function set_holder(field, id)
  holder(field)
  keys[field].id = id
end

local function free_key(t)
  local field = key_field(t)
  if field and holder(field) == t.id then set_holder(field, false) end
end

local buckets
local remembered, new_ended = {}, {}

-- Reads what is remembered of ids (or 'r' + request ids), all at once.
local function recall(fields)
  if not buckets then
    buckets = {}
    for i = 4, 2, -1 do
      if redis.call('EXISTS', KEYS[i]) == 1 then buckets[#buckets + 1] = KEYS[i] end
    end
  end
  for _, field in ipairs(fields) do remembered[field] = false end
  for _, bucket in ipairs(buckets) do
    read_all({[bucket] = fields}, function(key) return key end, function(_, field, v)
      remembered[field] = remembered[field] or v
    end)
  end
end

-- What is remembered of an id (or 'r' + request id); false if nothing is.
local function ended(field)
  if remembered[field] == nil then recall({field}) end
  return remembered[field]
end

local function remember(field, value)
  remembered[field] = value
  new_ended[field] = value
end

local function covered(t)
  return t.kind == 's' and t.fire <= PRIOR and t.fresh ~= EPOCH8
end

-- Files a timer as pending at a place that is not its birth position.
local function file(t, fire, tier, slot)
  t.kind, t.slot, t.fire, t.tier, t.born, t.changed = 's', slot, fire, tier, false, true
  t.fresh = fire <= PRIOR and EPOCH8 or '\0\0\0\0\0\0\0\0'
end

local function bury(t, reason)
  free_key(t)
  t.kind, t.reason, t.died, t.changed = 'd', reason, NOW, true
end

local function remove(t, how)
  free_key(t)
  t.kind, t.changed = nil, true
  if how then remember(t.id, how) end
end

-- What a purged dead or unconfirmed timer leaves behind.
local function purge(t)
  local old = t.kind == 'd' and NOW - t.died > 30000
  remove(t, not old and '\4' or nil)
end

local function value(t)
  if t.born then return record(t) end
  return string.char(128 + t.tier) .. struct.pack('<I6', t.fire) .. record(t)
end

local function moved_value(t)
  if t.kind == 's' then
    if t.born then return nil end
    return 's' .. string.sub(KEYS[SLOT0 + t.slot], NAME0)
  elseif t.kind == 'p' then
    return 'p' .. record(t)
  elseif t.kind == 't' then
    return 't' .. t.by .. (t.unconfirmed and '\1' or '\0') .. record(t)
  elseif t.kind == 'd' then
    return 'd' .. struct.pack('<BI6', t.reason, t.died) .. record(t)
  end
end

local function last_score(key, low, high)
  local from, to = string.format('(%.0f', high), string.format('%.0f', low)
  local last = redis.call('ZREVRANGEBYSCORE', key, from, to, 'WITHSCORES', 'LIMIT', 0, 1)
  return last[2] and tonumber(last[2]) or low
end

-- Where a timer newly stands in the index of its place.
local next_order = {}
local function order(kind, t)
  local key, low, high = KEYS[5], 0, 9007199254740992
  local name = kind
  if kind == 't' then
    key = KEYS[6]
  elseif kind == 'p' then
    local d = dest(t)
    key, low, high, name = KEYS[7], d * 4294967296, (d + 1) * 4294967296, 'p' .. d
  end
  local n = (next_order[name] or last_score(key, low, high)) + 1
  next_order[name] = n
  return string.format('%.0f', n)
end

-- Everything that is to be written, from the differences between what was read and what is.
local function differences()
  local w = {sets = plain.sets, dels = plain.dels, added = plain.added, gone = plain.gone, moved = {}, zadd = {}, zrem = {}}
  local index = {d = KEYS[5], t = KEYS[6], p = KEYS[7]}
  for id, t in pairs(timers) do
    if t.changed then
      local stays = t.kind == 's' and t.was_kind == 's' and t.slot == t.was_slot
      if t.was_kind == 's' and not stays then table.insert(list_of(w.dels, t.was_slot), id) end
      if t.kind == 's' then
        local l = list_of(w.sets, t.slot)
        l[#l + 1] = id
        l[#l + 1] = value(t)
        if not stays then w.added[t.slot] = (w.added[t.slot] or 0) + 1 end
      end
      local m = moved_value(t)
      if m then
        local l = list_of(w.moved, moved_key(id))
        l[#l + 1] = id
        l[#l + 1] = m
      elseif t.was_moved then
        table.insert(list_of(w.gone, moved_key(id)), id)
      end
    end
    if t.kind ~= t.was_kind then
      if index[t.was_kind] then table.insert(list_of(w.zrem, index[t.was_kind]), id) end
    end
  end
  return w, index
end

-- Writes it all. Indexes of slots first, then contents, then removals, then indexes of what is empty.
local function write(w)
  local empty, lengths, touched = {}, {}, {}
  for slot in pairs(w.sets) do touched[slot] = true end
  for slot in pairs(w.dels) do touched[slot] = true end
  for slot in pairs(touched) do
    local key = KEYS[SLOT0 + slot]
    local before = call('HLEN', key)
    local after = before + (w.added[slot] or 0) - (w.dels[slot] and #w.dels[slot] or 0)
    lengths[#lengths + 1] = struct.pack('<I2I4', slot, after)
    if (before == 0) ~= (after == 0) then
      local name, in_index = string.sub(key, NAME0), KEYS[u16(INDEXES, 2 * slot - 1)]
      local l = list_of(after > 0 and w.zadd or empty, in_index)
      if after > 0 then l[#l + 1] = string.match(name, '^%d+%.%d+%.(%d+)') end
      l[#l + 1] = name
    end
  end
  for key, l in pairs(w.zadd) do in_pieces('ZADD', key, l, 1000) end
  for slot, l in pairs(w.sets) do in_pieces('HSET', KEYS[SLOT0 + slot], l, 1000) end
  for key, l in pairs(w.moved) do in_pieces('HSET', key, l, 1000) end
  for slot, l in pairs(w.dels) do in_pieces('HDEL', KEYS[SLOT0 + slot], l, 1000) end
  for key, l in pairs(w.gone) do in_pieces('HDEL', key, l, 1000) end
  for key, l in pairs(w.zrem) do in_pieces('ZREM', key, l, 1000) end
  for key, l in pairs(empty) do in_pieces('ZREM', key, l, 1000) end
  return table.concat(lengths)
end

local function write_keys()
  local sets, dels = {}, {}
  for field, k in pairs(keys) do
    if k.id ~= k.was then
      if k.id then
        local l = list_of(sets, key_key(field))
        l[#l + 1] = field
        l[#l + 1] = k.id
      else
        table.insert(list_of(dels, key_key(field)), field)
      end
    end
  end
  for key, l in pairs(sets) do in_pieces('HSET', key, l, 1000) end
  for key, l in pairs(dels) do in_pieces('HDEL', key, l, 1000) end
end

local function write_ended()
  local l = {}
  for field, v in pairs(new_ended) do
    l[#l + 1] = field
    l[#l + 1] = v
  end
  if #l > 0 then
    in_pieces('HSET', KEYS[3], l, 1000)
    redis.call('PEXPIRE', KEYS[3], 100000)
  end
end

-- Answers NEED, or writes and answers OK. `arrived`: ids in the order in which they came to their place.
local arrived = {}
local function finish(answers)
  if #needs > 0 then return {'NEED', unpack(needs, 1, math.min(#needs, 1000))} end
  local w, index = differences()
  for i = 1, #arrived do
    local t = timers[arrived[i]]
    if t.kind ~= t.was_kind and index[t.kind] and not t.ordered then
      t.ordered = true
      local l = list_of(w.zadd, index[t.kind])
      l[#l + 1] = order(t.kind, t)
      l[#l + 1] = t.id
    end
  end
  local answer = table.concat(answers)
  local lengths = write(w)
  write_keys()
  write_ended()
  applied(struct.pack('<I4', #answer) .. answer .. lengths, ARGV[5])
  return {'OK', answer, lengths}
end

-- Notes that a timer has come to the dead letters, to the taken or to the parked ones.
local function arrive(t) arrived[#arrived + 1] = t.id end

-- Asks for the id behind a key.
local function need_target(target, id)
  asked[id] = true
  need('k' .. id .. string.sub(target, 2))
end

-- The id that a target names: 'i' id, or 'k' the field of a key; false if none.
local function resolve(target)
  if string.sub(target, 1, 1) == 'i' then return string.sub(target, 2) end
  local id = holder(string.sub(target, 2))
  if id and not cands[id] then need_target(target, id) end
  return id
end

-- No delivery of this pending or parked timer can have been started, in whatever epoch.
local function untouched(t)
  return t.failed == 0 and not covered(t) and t.stopped == 0
end
