#!lua flags=allow-oom
-- Finds out what was applied, after an answer was lost; and shuts out whatever is still on its way on an old connection,
-- by raising seq far above it.
--
-- KEYS[1] and ARGV[1..2]: see prelude.lua. ARGV[3] the highest seq whose answer the owner has, ARGV[4] how far to raise it.
-- Answers: {'FENCED', epoch stored} | {'SEQ', seq stored}: lower than the owner's, writes were lost; nothing changed |
--          {'OK', seq now, 'seq:answer', ...}: the answers that are kept
--@include prelude

local o = redis.call('HMGET', KEYS[1], 'e', 'n', 's')
if o[1] ~= ARGV[1] or o[2] ~= ARGV[2] then return {'FENCED', o[1] or '0'} end
if tonumber(o[3]) < tonumber(ARGV[3]) then return {'SEQ', o[3]} end
local answer = {'OK', string.format('%.0f', tonumber(o[3]) + tonumber(ARGV[4]))}
local fields = {}
for i = 0, RING - 1 do fields[#fields + 1] = 'a' .. i end
for _, a in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
  if a then answer[#answer + 1] = a end
end
redis.call('HSET', KEYS[1], 's', answer[2])
return answer
