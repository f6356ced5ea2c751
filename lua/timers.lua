-- Put behind slots.lua where a script does more than the short way: timers as tables, keys, what is remembered, the order of
-- the dead, the taken and the parked.
--
-- KEYS, ARGV, answers: see slots.lua.

--@include records

local DEADLINE, TIMEOUT, RETRY = 4, 8, 16

local NOW, EPOCH8 = tonumber(ARGV[4]), ARGV[7]

local slot_of_name, keys, needs, new_ended = nil, {}, {}, {}

-- Ids that are asked for through their keys.
local asked = {}

local function need(what) needs[#needs + 1] = what end

local function birth_due(id) return (struct.unpack('>I6', id)) end

local function moved_key(id) return KEYS[byte(LAYOUT, byte(id, 16) % 16 + 1)] end

-- What is remembered of an id (or 'r' + request id); false if nothing is.
local function ended(field)
  if remembered[field] == nil then recall({field}) end
  return remembered[field]
end

local function record(t)
  if t.raw then return t.raw end
  if t.failed == 0 and t.budget == 0 and t.stopped == 0 and t.error == '' and t.fresh == '\0\0\0\0\0\0\0\0' then
    return string.char(t.flags) .. t.body
  end
  return string.char(t.flags + 32) .. struct.pack('<I4I4', t.failed, t.budget) .. t.fresh
    .. struct.pack('<BI2B', t.stopped, #t.error, 0) .. t.error .. t.body
end

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

-- The number of a slot by its name; nil if it is not declared.
local function slot_number(name)
  if not slot_of_name then
    slot_of_name = {}
    for i = 1, #KEYS - SLOT0 do slot_of_name[string.sub(KEYS[SLOT0 + i], NAME0)] = i end
  end
  return slot_of_name[name]
end

-- Reads where a timer is. kind: 's' pending in a slot, 'p' parked, 't' taken, 'd' dead, nil nowhere.
local function read_timer(t)
  local id = t.id
  if not cands[id] then
    if not asked[id] then need('i' .. id) end
    return
  end
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
    if not string.find(name, '^%d+%.[0-3]%.%d+%.?%d*$') then return end
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

local function key_key(field)
  local a, b, c = string.byte('\0' .. field, -3, -1)
  return KEYS[byte(LAYOUT, (a * 31 + b * 7 + c + #field) % 16 + 17)]
end

-- Which timer a key names, as it is at this point of the script.
local function holder(field)
  local k = keys[field]
  if not k then
    local key = key_key(field)
    if not key then need('h') end
    local id = key and call('HGET', key, field)
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

local function push2(map, key, a, b)
  push(map, key, a)
  push(map, key, b)
end

-- Adds the differences between what was read and what is to what is to be written: entries of moved, what leaves the order
-- of the dead, the taken and the parked.
local function differences(index)
  local moved, zrem = {}, {}
  for id, t in pairs(timers) do
    if t.changed then
      local stays = t.kind == 's' and t.was_kind == 's' and t.slot == t.was_slot
      if t.was_kind == 's' and not stays then push(dels, t.was_slot, id) end
      if t.kind == 's' then
        push2(sets, t.slot, id, value(t))
        if not stays then added[t.slot] = (added[t.slot] or 0) + 1 end
      end
      local m = moved_value(t)
      if m then
        push2(moved, moved_key(id), id, m)
      elseif t.was_moved then
        push(gone, moved_key(id), id)
      end
    end
    if t.kind ~= t.was_kind and index[t.was_kind] then push(zrem, index[t.was_kind], id) end
  end
  return moved, zrem
end

local function write_keys()
  local set, free = {}, {}
  for field, k in pairs(keys) do
    if k.id ~= k.was then
      if k.id then
        push2(set, key_key(field), field, k.id)
      else
        push(free, key_key(field), field)
      end
    end
  end
  for key, l in pairs(set) do in_pieces('HSET', key, l) end
  for key, l in pairs(free) do in_pieces('HDEL', key, l) end
end

local function write_ended()
  local l = {}
  for field, v in pairs(new_ended) do
    l[#l + 1] = field
    l[#l + 1] = v
  end
  if #l > 0 then
    in_pieces('HSET', KEYS[3], l)
    call('PEXPIRE', KEYS[3], 100000)
  end
end

-- Answers NEED, or writes (`rest`: what else) and answers OK. `arrived`: ids in the order in which they came to their place.
local arrived = {}
local function finish(answers, rest)
  if #needs > 0 then return {'NEED', unpack(needs, 1, math.min(#needs, 1000))} end
  local index = {d = KEYS[5], t = KEYS[6], p = KEYS[7]}
  local moved, zrem = differences(index)
  local zadd = {}
  for i = 1, #arrived do
    local t = timers[arrived[i]]
    if t.kind ~= t.was_kind and index[t.kind] and not t.ordered then
      t.ordered = true
      push2(zadd, index[t.kind], order(t.kind, t), t.id)
    end
  end
  return write(answers, zadd, moved, zrem, function()
    write_keys()
    write_ended()
    if rest then rest() end
  end)
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

-- Was it taken in this epoch, and may its owner still settle it?
local function taken_here(t) return t.kind == 't' and t.by == EPOCH8 and not t.unconfirmed end

-- No delivery of this timer can have been started, in whatever epoch: it is pending or parked, or was taken in this
-- epoch and not sent.
local function untouched(t)
  return t.failed == 0 and not covered(t) and t.stopped == 0
end
