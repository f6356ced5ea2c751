#!lua flags=allow-oom
-- Removes timers that were not delivered, stops the others.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: target ('i' id, 'k' field of a key), attempt in flight (0: none), request id (8).
-- Answers: 'X' id: cancelled | 'L' id: too late | 'F' not found; also kept under the request id
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

local function cancel(target, in_flight)
  local id = resolve(target)
  if not id then return 'F' end
  local t = timer(id)
  if not t.kind then
    local how = ended(id)
    if how == '\1' then return 'X' .. id end
    if not how or how == '\5' then remember(id, '\5') end
    return 'F'
  end
  if t.kind == 's' or t.kind == 'p' or taken_here(t) then
    if in_flight > t.failed then
      if t.kind ~= 't' then t.stopped, t.changed = 1, true end
    elseif untouched(t) then
      remove(t, '\1')
      return 'X' .. id
    else
      if covered(t) then t.failed = t.failed + 1 end
      bury(t, 2)
      arrive(t)
    end
  end
  return 'L' .. id
end

local requests = {}
for i = FIRST + 2, #ARGV, 3 do requests[#requests + 1] = 'r' .. ARGV[i] end
recall(requests)
local answers = {}
for i = FIRST, #ARGV, 3 do
  local request = 'r' .. ARGV[i + 2]
  local answer = ended(request)
  if not answer or not string.find('XLF', string.sub(answer, 1, 1), 1, true) then
    answer = cancel(ARGV[i], tonumber(ARGV[i + 1]))
    remember(request, answer)
  end
  answers[#answers + 1] = answer
end
return finish(answers)
