-- Put where records are taken apart. A record: flags (1; +32 with progress: failed (4), budget (4), fresh epoch (8),
-- stopped (1), length of the error (2), error), then the body: destination (varint), the key with its length if there is one,
-- the due time (6) if it is not that of the id, and what else the application wrote.

local DUE = 64

local function varint(s, at)
  local n, shift = 0, 1
  while true do
    local b = string.byte(s, at) or 0
    at = at + 1
    n = n + (b % 128) * shift
    if b < 128 then return n, at end
    shift = shift * 128
  end
end

-- Takes a record apart into a timer: progress, and the body behind it. One that cannot be is kept as it is in `raw`.
local function parse(t, rec)
  local flags = string.byte(rec, 1)
  if not flags or (bit.band(flags, 32) ~= 0 and #rec < 21) then
    t.raw, rec, flags = rec, '\0\0', 0
  end
  t.flags = flags
  if bit.band(flags, 32) ~= 0 then
    local len
    t.failed, t.budget, t.fresh, t.stopped, len = struct.unpack('<I4I4c8BI2', rec, 2)
    t.error = string.sub(rec, 22, 21 + len)
    t.body = string.sub(rec, 22 + len)
    t.flags = flags - 32
  else
    t.failed, t.budget, t.fresh, t.stopped, t.error = 0, 0, '\0\0\0\0\0\0\0\0', 0, ''
    t.body = string.sub(rec, 2)
  end
end

-- The number of a timer's destination, and the position behind it in the body.
local function dest(t) return varint(t.body, 1) end

-- The field under which a timer's key is kept, and the position behind it; nil if it has none.
local function key_field(t)
  local d, at = dest(t)
  if t.flags % 4 < 2 then return nil, at end
  local len
  len, at = varint(t.body, at)
  return d .. ':' .. string.sub(t.body, at, at + len - 1), at + len
end

-- What the application wrote: flags without progress and due time, body without due time.
local function content(flags, body)
  if bit.band(flags, DUE) == 0 then return string.char(flags) .. body end
  local _, at = key_field({flags = flags, body = body})
  return string.char(flags - DUE) .. string.sub(body, 1, at - 1) .. string.sub(body, at + 6)
end
