#!lua
-- Files new timers as pending at their birth positions, if plan/plain.rs or file.lua find that some of the call are not of the
-- common kind: have a key, say, or were met before. The others of the call still go a short way here, `file_plain`. Refused by a
-- store at its memory limit.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- ARGV[FIRST] for each operation: id (16), policy ('c' create, 'r' replace, 'k' keep), number of the slot (2, big endian);
-- then for each operation: record; then the number and the name of each destination that is not stored yet. If there are
-- any, the last of KEYS is dest:{p}:c, a hash: number -> group, zero byte, app.
-- Answers: 'N' new | 'R' id: new, replaced this one | 'O' stored before | 'C' conflict | 'E' how it ended (1) |
--          'B' id: the key names this one | 'K' id: kept this one
--@include prelude

local refused = fence(1)
if refused then return refused end

--@include slots

local heads, answers, unseen = ARGV[FIRST], {}, {}
local count = #heads / 19
local function name_destinations()
  if #ARGV > FIRST + count then call('HSET', KEYS[#KEYS], unpack(ARGV, FIRST + count + 1)) end
end

for i = 1, count do
  local id = sub(heads, 19 * i - 18, 19 * i - 3)
  if not slot_at[id] and not in_moved[id] then unseen[#unseen + 1] = id end
end
if not buckets or #buckets > 0 then recall(unseen) end

-- Files the timer of operation `i` if it is new, has no key, and is above all prior claims. Behind it it is as if it had been
-- read so.
local function file_plain(i)
  local id, rec = sub(heads, 19 * i - 18, 19 * i - 3), ARGV[FIRST + i]
  if byte(rec, 1) % 4 >= 2 or slot_at[id] or in_moved[id] or remembered[id] or timers[id] then return false end
  if (struct.unpack('>I6', id)) <= PRIOR then return false end
  local high, low = byte(heads, 19 * i - 1, 19 * i)
  local slot = high * 256 + low
  slot_at[id], value_at[id] = slot, rec
  local l = sets[slot]
  if l then
    l[#l + 1] = id
    l[#l + 1] = rec
    added[slot] = added[slot] + 1
  else
    sets[slot], added[slot] = {id, rec}, 1
  end
  answers[i] = 'N'
  return true
end

local next = 1
while next <= count and file_plain(next) do next = next + 1 end
if next > count then return write(answers, {}, nil, nil, name_destinations) end
--@include timers

local function schedule(id, policy, rec, slot)
  local t = timer(id)
  if t.kind then
    return not t.raw and content(t.flags, t.body) == rec and 'O' or 'C'
  end
  local how = ended(id)
  if how then return 'E' .. how end
  parse(t, rec)
  local answer, field = 'N', key_field(t)
  if field then
    local held = holder(field)
    if held then
      if policy == 'c' then return 'B' .. held end
      if policy == 'k' then return 'K' .. held end
      local old = timer(held)
      if old.kind then remove(old, '\2') end
      answer = 'R' .. held
    end
    set_holder(field, id)
  end
  t.kind, t.slot, t.born, t.tier, t.fire, t.changed = 's', slot, true, 0, birth_due(id), true
  if t.fire <= PRIOR then t.fresh = EPOCH8 end
  return answer
end

for i = next, count do
  if not file_plain(i) then
    local high, low = byte(heads, 19 * i - 1, 19 * i)
    local id, policy = sub(heads, 19 * i - 18, 19 * i - 3), sub(heads, 19 * i - 2, 19 * i - 2)
    answers[i] = schedule(id, policy, ARGV[FIRST + i], high * 256 + low)
  end
end
return finish(answers, name_destinations)
