#!lua flags=allow-oom
-- Reads slots into the owner's wheel: whole slots go to the copy, empty ones leave their index.
-- May be repeated, so its answer is not kept.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2] copy:{p}:c
-- KEYS[3], KEYS[5], ... the index a slot is in now (may be KEYS[2]); KEYS[4], KEYS[6], ... the slot
-- ARGV[4] claimed-until or ''. From ARGV[5] for each slot: its start (ms), its name.
-- Answers: {'OK', {id, value, ...}, {id, value, ...}, ...}: the contents of each slot
--@include prelude

local refused = fence(1)
if refused then return refused end
-- The short way of a lone slot.
if #KEYS == 4 then
  local content = redis.call('HGETALL', KEYS[4])
  if #content == 0 then
    redis.call('ZREM', KEYS[3], ARGV[6])
  elseif KEYS[3] ~= KEYS[2] then
    redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
    redis.call('ZREM', KEYS[3], ARGV[6])
  end
  applied(nil, ARGV[4])
  return {'OK', content}
end
local answer, empty, move = {'OK'}, {}, {}
for i = 3, #KEYS, 2 do
  local content = redis.call('HGETALL', KEYS[i + 1])
  local start, name = ARGV[i + 2], ARGV[i + 3]
  answer[#answer + 1] = content
  if #content == 0 then
    empty[#empty + 1] = {KEYS[i], name}
  elseif KEYS[i] ~= KEYS[2] then
    move[#move + 1] = {KEYS[i], start, name}
  end
end
for _, m in ipairs(move) do redis.call('ZADD', KEYS[2], m[2], m[3]) end
for _, m in ipairs(move) do redis.call('ZREM', m[1], m[3]) end
for _, e in ipairs(empty) do redis.call('ZREM', e[1], e[2]) end
applied(nil, ARGV[4])
return answer
