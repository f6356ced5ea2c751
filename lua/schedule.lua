#!lua
-- Files new timers as pending at their birth positions. Refused by a store at its memory limit.
--
-- KEYS[1..39] and on, ARGV up to FIRST: see timers.lua. Answers: see prelude.lua and timers.lua.
-- ARGV[FIRST] for each operation: id (16), policy ('c' create, 'r' replace, 'k' keep), number of the slot (2, big endian);
-- then for each operation: record.
-- Answers: 'N' new | 'R' id: new, replaced this one | 'O' stored before | 'C' conflict | 'E' how it ended (1) |
--          'B' id: the key names this one | 'K' id: kept this one
--@include prelude
--@include timers

local refused = fence(1)
if refused then return refused end

-- What the application wrote: flags without progress and due time, body without due time.
local function content(flags, body)
  if bit.band(flags, DUE) == 0 then return string.char(flags) .. body end
  local _, at = key_field({flags = flags, body = body})
  return string.char(flags - DUE) .. string.sub(body, 1, at - 1) .. string.sub(body, at + 6)
end

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

prefetch()
local heads, ids, answers, unseen = ARGV[FIRST], {}, {}, {}
for i = 1, #heads / 19 do
  local id = sub(heads, 19 * i - 18, 19 * i - 3)
  ids[i] = id
  if unknown(id) then unseen[#unseen + 1] = id end
end
recall(unseen)
for i, id in ipairs(ids) do
  local rec, slot = ARGV[FIRST + i], u16(heads, 19 * i - 1)
  if byte(rec, 1) % 4 < 2 and birth_due(id) > PRIOR and unknown(id) and not ended(id) then
    file_plain(id, rec, slot)
    answers[i] = 'N'
  else
    answers[i] = schedule(id, sub(heads, 19 * i - 2, 19 * i - 2), rec, slot)
  end
end
return finish(answers)
