#!lua flags=allow-oom
-- Moves at-most-once timers to the taken ones, before a byte of them is sent.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: id (16), failed attempts.
-- Answers: 'D' done | 'U' gone
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local function take(t, failed)
  if t.kind == 't' then return taken_here(t) and 'D' or 'U' end
  if (t.kind ~= 's' and t.kind ~= 'p') or t.flags % 2 == 0 then return 'U' end
  t.kind, t.by, t.failed, t.changed = 't', EPOCH8, failed, true
  arrive(t)
  return 'D'
end

local answers = {}
for i = FIRST, #ARGV, 2 do answers[#answers + 1] = take(timer(ARGV[i]), tonumber(ARGV[i + 1])) end
return finish(answers)
