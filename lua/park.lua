#!lua flags=allow-oom
-- Moves timers to their destinations' park.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: id (16), failed attempts.
-- Answers: 'D' done | 'U' gone
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local function park(t, failed)
  if t.kind == 'p' then return 'D' end
  if t.kind ~= 's' and not taken_here(t) then return 'U' end
  t.kind, t.failed, t.changed = 'p', failed, true
  arrive(t)
  return 'D'
end

local answers = {}
for i = FIRST, #ARGV, 2 do answers[#answers + 1] = park(timer(ARGV[i]), tonumber(ARGV[i + 1])) end
return finish(answers)
