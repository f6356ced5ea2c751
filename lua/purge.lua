#!lua flags=allow-oom
-- Removes dead and unconfirmed timers for good.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: id (16).
-- Answers: 'D' done | 'U' gone
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local answers = {}
for i = FIRST, #ARGV do
  local t = timer(ARGV[i])
  local goes = retained_since(t)
  if goes then purge(t) end
  answers[#answers + 1] = goes and 'D' or 'U'
end
return finish(answers)
