#!lua flags=no-writes
-- Lists what is in wide slots that are to be split.
--
-- KEYS[1] and ARGV[1..3]: see prelude.lua. KEYS[2..] the slots.
-- Answers: {'OK', {id, head, ...}, ...}: for each slot the ids, with bytes and the first 7 bytes of the value
--@include prelude

local refused = fence(0)
if refused then return refused end
local answer = {'OK'}
for i = 2, #KEYS do
  local content = redis.call('HGETALL', KEYS[i])
  for j = 2, #content, 2 do
    content[j] = struct.pack('<I4', #content[j]) .. string.sub(content[j], 1, 7)
  end
  answer[#answer + 1] = content
end
return answer
