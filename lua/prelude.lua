-- Put in front of every script that works for the owner of a partition (behind its shebang line).
--
-- KEYS[1]  owner:{p}:c   hash: e epoch, n nonce, s seq, c claimed-until, a0..a31 answers of the last scripts
-- ARGV[1]  epoch         ARGV[2] nonce          ARGV[3] seq: a writer's own number, a reader's last written one
--
-- Answers: {'FENCED', epoch stored}   another owner has the partition; nothing changed
--          {'SEQ', seq stored}        out of turn; nothing changed
--          {'OK', ...}

local RING = 32

-- Refuses a script of the wrong owner or out of turn; nil if it may go on. `step` is 1 for a writer, 0 for a reader.
local claimed = 0
local function fence(step)
  local o = redis.call('HMGET', KEYS[1], 'e', 'n', 's', 'c')
  if o[1] ~= ARGV[1] or o[2] ~= ARGV[2] then return {'FENCED', o[1] or '0'} end
  if o[3] + step ~= ARGV[3] + 0 then return {'SEQ', o[3]} end
  claimed = (o[4] or '0') + 0
  return nil
end

-- Counts a writer as applied. `answer` is kept for an owner that has lost it; `claim` raises claimed-until ('': no).
local function applied(answer, claim)
  local call, owner, seq = redis.call, KEYS[1], ARGV[3]
  local raised = claim ~= '' and claim + 0 > claimed
  -- Written out: a table and unpack cost more than the fence.
  if not answer then
    if raised then call('HSET', owner, 's', seq, 'c', claim) else call('HSET', owner, 's', seq) end
  elseif raised then
    call('HSET', owner, 's', seq, 'a' .. seq % RING, seq .. ':' .. answer, 'c', claim)
  else
    call('HSET', owner, 's', seq, 'a' .. seq % RING, seq .. ':' .. answer)
  end
end

-- The same, and answers OK.
local function done(answers, lengths, claim)
  applied(struct.pack('<I4', #answers) .. answers .. lengths, claim)
  return {'OK', answers, lengths}
end

-- Calls a command with many arguments in pieces of 1,000.
local function in_pieces(command, key, args)
  for i = 1, #args, 1000 do
    redis.call(command, key, unpack(args, i, math.min(i + 999, #args)))
  end
end

-- When a slot starts, in ms, by its name.
local function start_of(name)
  local width, start = string.match(name, '^%d+%.(%d)%.(%d+)')
  return start * ({['0'] = 1000, ['1'] = 60000, ['2'] = 3600000, ['3'] = 86400000})[width]
end
