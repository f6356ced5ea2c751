#!lua
-- Files dead or unconfirmed timers as pending, with a new retry budget. Refused by a store at its memory limit.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: id (16), fire (ms), number of the slot.
-- Answers: 'D' done | 'U' gone | 'T' id: the key names this one
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

-- Takes a deadline that has passed out of a timer's body.
local function drop_passed_deadline(t)
  if bit.band(t.flags, DEADLINE) == 0 then return end
  local _, at = key_field(t)
  if bit.band(t.flags, DUE) ~= 0 then at = at + 6 end
  local after, rest = varint(t.body, at)
  if birth_due(t.id) + after < NOW then
    t.flags = t.flags - DEADLINE
    t.body = string.sub(t.body, 1, at - 1) .. string.sub(t.body, rest)
  end
end

local function replay(t, fire, slot)
  if t.kind == 's' then return 'D' end
  if not retained_since(t) then return 'U' end
  local field = key_field(t)
  if field then
    local held = holder(field)
    if held and held ~= t.id then return 'T' .. held end
    set_holder(field, t.id)
  end
  if t.kind == 'u' then t.failed = t.failed + 1 end
  t.budget, t.stopped = t.failed, 0
  drop_passed_deadline(t)
  file(t, fire, 0, slot)
  return 'D'
end

local answers = {}
for i = FIRST, #ARGV, 3 do
  answers[#answers + 1] = replay(timer(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
end
return finish(answers)
