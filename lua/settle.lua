#!lua flags=allow-oom
-- Ends or continues timers after a delivery, or in place of one.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- ARGV[FIRST] for each operation: id (16), verdict (1); then for each operation by its verdict:
--   'a' ack, 'e' expired, 'u' unconfirmed: nothing
--   'l' late ack: attempt
--   'r' retry: failed, error, fire (ms), tier 'x' number of the slot
--   'd' dead: failed, error, reason
-- Answers: 'D' done | 'U' gone
--@include prelude

local refused = fence(1)
if refused then return refused end

--@include slots

local heads, answers, next = ARGV[FIRST], {}, 1
local count = #heads / 17

-- Does operation `i` if it acknowledges a pending timer that has no key and leaves no word of how it ended.
local function remove_plain(i)
  local id = sub(heads, 17 * i - 16, 17 * i - 1)
  local v = byte(heads, 17 * i) == 97 and not timers[id] and value_at[id]
  if not v then return false end
  local flags, moved = byte(v, 1), false
  if flags and flags >= 128 then flags, moved = byte(v, 8), true end
  if not flags or flags % 4 ~= 0 then return false end
  push(dels, slot_at[id], id)
  if moved then push(gone, KEYS[byte(LAYOUT, byte(id, 16) % 16 + 1)], id) end
  slot_at[id], value_at[id] = nil, nil
  answers[i] = 'D'
  return true
end

while next <= count and remove_plain(next) do next = next + 1 end
if next > count then return write(answers, {}) end
--@include timers

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
  if t.kind ~= 's' and t.kind ~= 'p' and not taken_here(t) then return 'U' end
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

local words = {l = 1, r = 4, d = 3}
local at = FIRST + 1
for i = next, count do
  if not remove_plain(i) then
    local t, verdict = timer(sub(heads, 17 * i - 16, 17 * i - 1)), sub(heads, 17 * i, 17 * i)
    answers[i] = t.kind and verdicts[verdict](t, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]) or 'U'
    at = at + (words[verdict] or 0)
  end
end
return finish(answers)
