#!lua flags=allow-oom
-- Ends or continues timers after a delivery, or in place of one.
--
-- KEYS[1..39] and on, ARGV up to FIRST: see timers.lua. Answers: see prelude.lua and timers.lua.
-- From ARGV[FIRST] for each operation: id (16), verdict, then by verdict:
--   'a' ack, 'e' expired, 'u' unconfirmed: '', '', '', ''
--   'l' late ack: attempt, '', '', ''
--   'r' retry: failed, error, fire (ms), tier 'x' number of the slot
--   'd' dead: failed, error, reason, ''
-- Answers: 'D' done | 'U' gone
--@include prelude
--@include timers

local refused = fence(1)
if refused then return refused end

local function ack(t)
  if t.kind == 'd' then return 'U' end
  remove(t, t.flags % 2 == 1 and '\0' or nil)
  return 'D'
end

local verdicts = {a = ack}

function verdicts.l(t, attempt)
  attempt = tonumber(attempt)
  local sent = t.kind == 't'
    or (t.kind ~= 'd' and (t.failed >= attempt or (covered(t) and attempt <= t.failed + 1)))
  if not sent or attempt < 1 then return 'U' end
  return ack(t)
end

function verdicts.r(t, failed, error, fire, where)
  if t.kind ~= 's' then return 'U' end
  failed = tonumber(failed)
  if t.failed >= failed then return 'D' end
  t.failed, t.error = failed, error
  if t.stopped ~= 0 then
    bury(t, 2)
    arrive(t)
  else
    local tier, slot = string.match(where, '^(%d+)x(%d+)$')
    file(t, tonumber(fire), tonumber(tier), tonumber(slot))
  end
  return 'D'
end

function verdicts.d(t, failed, error, reason)
  if t.kind == 'd' then return 'D' end
  t.failed, t.error = tonumber(failed), error
  bury(t, tonumber(reason))
  arrive(t)
  return 'D'
end

function verdicts.e(t)
  if t.kind ~= 's' and t.kind ~= 'p' then return 'U' end
  remove(t, '\3')
  return 'D'
end

function verdicts.u(t)
  if t.kind ~= 't' then return 'U' end
  if not t.unconfirmed then
    free_key(t)
    t.unconfirmed, t.changed = true, true
  end
  return 'D'
end

local answers = {}
for i = FIRST, #ARGV, 6 do
  local t = timer(ARGV[i])
  local verdict = verdicts[ARGV[i + 1]]
  answers[#answers + 1] = t.kind and verdict(t, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]) or 'U'
end
return finish(answers)
