#!lua
-- Gives undelivered timers another due time. Refused by a store at its memory limit.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- From ARGV[FIRST] for each operation: target ('i' id, 'k' field of a key), in flight ('1', '0'), request id (8),
-- due time (ms), number of the slot (0: the target's id was not known when the script was made).
-- Answers: 'H' id: rescheduled | 'M' id: too late | 'P' id: past its deadline | 'G' not found; also kept under the request id
--@include prelude

local refused = fence(1)
if refused then return refused end
--@include slots
--@include timers

-- Writes the due time into a timer's body, or out of it if it is the one at birth.
local function set_due(t, due)
  local _, at = key_field(t)
  local rest = at
  if bit.band(t.flags, DUE) ~= 0 then
    rest, t.flags = at + 6, t.flags - DUE
  end
  local text = ''
  if due ~= birth_due(t.id) then
    text, t.flags = struct.pack('<I6', due), t.flags + DUE
  end
  t.body = string.sub(t.body, 1, at - 1) .. text .. string.sub(t.body, rest)
end

local function past_deadline(t, due)
  if bit.band(t.flags, DEADLINE) == 0 then return false end
  local _, at = key_field(t)
  if bit.band(t.flags, DUE) ~= 0 then at = at + 6 end
  return birth_due(t.id) + (varint(t.body, at)) < due
end

local function reschedule(target, in_flight, due, slot)
  local id = resolve(target)
  if not id then return 'G' end
  local t = timer(id)
  if not t.kind then return 'G' end
  if in_flight or (t.kind ~= 's' and t.kind ~= 'p') or not untouched(t) then return 'M' .. id end
  if past_deadline(t, due) then return 'P' .. id end
  if slot == 0 then
    need_target(target, id)
    return ''
  end
  set_due(t, due)
  file(t, due, 0, slot)
  return 'H' .. id
end

local requests = {}
for i = FIRST + 2, #ARGV, 5 do requests[#requests + 1] = 'r' .. ARGV[i] end
recall(requests)
local answers = {}
for i = FIRST, #ARGV, 5 do
  local request = 'r' .. ARGV[i + 2]
  local answer = ended(request)
  if not answer or not string.find('HMPG', string.sub(answer, 1, 1), 1, true) then
    answer = reschedule(ARGV[i], ARGV[i + 1] == '1', tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]))
    remember(request, answer)
  end
  answers[#answers + 1] = answer
end
return finish(answers)
