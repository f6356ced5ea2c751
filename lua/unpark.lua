#!lua flags=allow-oom
-- Files parked timers as pending.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: id (16), fire (ms), number of the slot.
-- Answers: 'D' done | 'U' gone
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local function unpark(t, fire, slot)
  if t.kind == 's' then return 'D' end
  if t.kind ~= 'p' then return 'U' end
  file(t, fire, 0, slot)
  return 'D'
end

local answers = {}
for i = FIRST, #ARGV, 3 do
  answers[#answers + 1] = unpark(timer(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
end
return finish(answers)
