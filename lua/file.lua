#!lua
-- Files new timers as pending at their birth positions, in the case that is common: none has a key, all fire above the prior
-- claim, no id comes twice, their destinations are stored. Leaves to schedule.lua what it finds to be otherwise. Refused by a
-- store at its memory limit.
--
-- KEYS[1]       owner:{p}:c            see prelude.lua
-- then          ended:{p}:c:<bucket>   see slots.lua; none if none of the ids can have ended
-- then          moved:{p}:c:<shelf>    see slots.lua; those of the ids
-- then          indexes of slots, then slot:{p}:c:<name>: those that are written, then those that are only looked into
--
-- ARGV[4] claim or ''
-- ARGV[5] buckets (1), shelves (1), KEYS before the first slot (2, big endian), bytes of a slot's key before its name (1); then for each slot
--         that is written the number of its index in KEYS (1; +128 if none of its timers is there yet, for certain), how many
--         timers it gets (1)
-- ARGV[6] for each timer its place among the operations, from 0 (1)
-- ARGV[7] for each slot that is looked into its number (2, big endian; +32768 if its ids are wanted), for how many ids (1), their
--         places among the timers, from 0 (1 each)
-- ARGV[8] of each timer that may have ended its place among the timers, from 0 (1)
-- ARGV[9] on, for each timer, slot by slot: id, record
-- It writes slot by slot, and reads of each before: nothing that it reads depends on what it wrote.
-- Answers: see prelude.lua. {'NEED', 'p'}: schedule.lua; nothing changed. {'OK', answers, lengths, wanted}: see slots.lua;
--          answers: 'N' new | 'O' stored before | 'C' conflict; wanted: number of a slot, its ids before this script, ... (not of one that has a
--          field which is no id)
--@include prelude

local refused = fence(1)
if refused then return refused end

local byte, sub, call = string.byte, string.sub, redis.call
local LAYOUT, FIRST, LAST = ARGV[5], 9, #ARGV
local BUCKETS, SHELVES, high, low, prefix = byte(LAYOUT, 1, 5)
-- Ids of a slot that are told at most.
local MOST_WANTED = 512
local SLOT0, COUNT = high * 256 + low, (LAST - FIRST + 1) / 2

local function any(key, fields)
  for _, found in ipairs(call('HMGET', key, unpack(fields))) do
    if found then return true end
  end
end

-- Whether one of the ids was moved, or has ended.
local function met_before()
  local ended, by_shelf = {}, {}
  for i = 1, #ARGV[8] do ended[i] = ARGV[FIRST + 2 * byte(ARGV[8], i)] end
  for i = 2, 1 + BUCKETS do
    if call('EXISTS', KEYS[i]) == 1 and any(KEYS[i], ended) then return true end
  end
  if call('EXISTS', unpack(KEYS, 2 + BUCKETS, 1 + BUCKETS + SHELVES)) == 0 then return false end
  for i = FIRST, LAST, 2 do
    local id = ARGV[i]
    local shelf = byte(id, 16) % 16
    by_shelf[shelf] = by_shelf[shelf] or {}
    table.insert(by_shelf[shelf], id)
  end
  for i = 2 + BUCKETS, 1 + BUCKETS + SHELVES do
    local key = KEYS[i]
    if call('EXISTS', key) == 1 and any(key, by_shelf[tonumber(string.match(key, '%d+$'))]) then return true end
  end
end

if call('EXISTS', unpack(KEYS, 2, 1 + BUCKETS + SHELVES)) > 0 and met_before() then return {'NEED', 'p'} end
local wanted, at = nil, 1
while at < #ARGV[7] do
  local a, b, n = byte(ARGV[7], at, at + 2)
  local number = a % 128 * 256 + b
  local key, fields = KEYS[SLOT0 + number], {byte(ARGV[7], at + 3, at + 2 + n)}
  for i = 1, n do fields[i] = ARGV[FIRST + 2 * fields[i]] end
  if any(key, fields) then return {'NEED', 'p'} end
  if a >= 128 and call('HLEN', key) <= MOST_WANTED then
    local ids, damaged = call('HKEYS', key), false
    for j = 1, #ids do damaged = damaged or #ids[j] ~= 16 end
    if not damaged then
      wanted = wanted or {}
      wanted[#wanted + 1] = number
      wanted[#wanted + 1] = table.concat(ids)
    end
  end
  at = at + 3 + n
end

-- Which timers are not new: place among the operations -> answer.
local known = nil

-- A record is there already: whether it is the same as it was written.
local function meet(i, old, rec)
  --@include records
  local answer = 'O'
  if old ~= rec then
    local t = {}
    parse(t, old)
    if t.raw or content(t.flags, t.body) ~= rec then answer = 'C' end
  end
  known = known or {}
  known[byte(ARGV[6], (i - FIRST) / 2 + 1)] = answer
end

-- Files timers that may be there; how many were not.
local function file(key, from, to)
  if to - from >= 6 then
    local ids = {}
    for i = from, to, 2 do ids[#ids + 1] = ARGV[i] end
    if not any(key, ids) then
      call('HSET', key, unpack(ARGV, from, to))
      return #ids
    end
  end
  local new = 0
  for i = from, to, 2 do
    local id, rec = ARGV[i], ARGV[i + 1]
    if call('HSETNX', key, id, rec) == 1 then
      new = new + 1
    else
      meet(i, call('HGET', key, id), rec)
    end
  end
  return new
end

local lengths, from = {}, FIRST
for slot = 1, (#LAYOUT - 5) / 2 do
  local key = KEYS[SLOT0 + slot]
  local index, n = byte(LAYOUT, 4 + 2 * slot, 5 + 2 * slot)
  local to, length, absent = from + 2 * n - 1, call('HLEN', key), index >= 128
  if length == 0 then
    -- Indexes of slots first, then contents.
    local name = sub(key, prefix + 1)
    call('ZADD', KEYS[absent and index - 128 or index], start_of(name), name)
    absent = true
  end
  if absent then
    call('HSET', key, unpack(ARGV, from, to))
    length = length + n
  else
    length = length + file(key, from, to)
  end
  lengths[2 * slot - 1], lengths[2 * slot] = slot, length
  from = to + 1
end

local answers = string.rep('N', COUNT)
if known then
  answers = {}
  for i = 0, COUNT - 1 do answers[i + 1] = known[i] or 'N' end
  answers = table.concat(answers)
end
local told = done(answers, struct.pack('<' .. string.rep('I2I4', #lengths / 2), unpack(lengths)), ARGV[4])
told[4] = wanted
return told
