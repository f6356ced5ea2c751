#!lua flags=no-writes
-- Finds a timer, live or dead.
--
-- KEYS[1..7] and on, ARGV up to FIRST: see slots.lua. Answers: see prelude.lua and slots.lua.
-- ARGV[FIRST] target: 'i' id, 'k' field of a key.
-- Answers: {'OK', ''} nowhere | {'OK', id, place, record}: place is 's' fire (6) tier (1) | 'p' |
--          't' epoch (8) zero (1) | 'u' epoch (8) since when (6) | 'd' reason (1) died (6)
--@include prelude

local refused = fence(0)
if refused then return refused end
--@include slots
--@include timers
local target = ARGV[FIRST]
local id = resolve(target)
if not id then return {'OK', ''} end
local t = timer(id)
if #needs > 0 then return {'NEED', unpack(needs)} end
if not t.kind then return {'OK', ''} end
local place = t.kind
if place == 's' then
  place = 's' .. struct.pack('<I6B', t.fire, t.tier)
elseif place == 't' then
  place = 't' .. t.by .. '\0'
elseif place == 'u' then
  place = 'u' .. t.by .. struct.pack('<I6', t.since)
elseif place == 'd' then
  place = 'd' .. struct.pack('<BI6', t.reason, t.died)
end
return {'OK', id, place, record(t)}
