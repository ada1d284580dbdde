-- Shared by add_prompt and add_response, which come after it in the same script: give an entry its seq, keep it,
-- trim the log and announce the entry.
--
-- KEYS  1 meta  2 log  3 ids  4 pending  5 times
-- ARGV  1 length of the session id in bytes, and the id  2 most messages  3 most bytes  4 channel
--       5 how large a message may be to ride along with its announcement  6 '1' if replicas have to confirm
--       7 message id  8 ts  9 data  10 now in ms  11 tag of the announcement, see redis_events.py
--
-- Messages are strings here and nothing else: what a user sent is never parsed in Lua.

local function load_meta()
  local found = redis.call('HMGET', KEYS[1], 'e', 's', 'f', 'b', 'a', 'l', 'r')
  if not found[1] then
    return nil
  end
  local meta = {epoch = found[1], seq = tonumber(found[2]), floor = tonumber(found[3]), bytes = tonumber(found[4])}
  meta.active_ms = tonumber(found[5])
  -- The name under which the session still has to be registered; empty if that is done.
  meta.unregistered = found[7] and '' or found[6]
  return meta
end

-- Whoever repeats a message wants to know it safe. Replicas confirm what was written on the same connection, which
-- may not be the one on which the message came first: so something is written, though nothing changes.
local function duplicate(meta)
  if ARGV[6] == '1' then
    redis.call('HSET', KEYS[1], 'e', meta.epoch)
  end
  return {'duplicate', meta.unregistered}
end

-- What to drop so that the log stays within its bounds; the newest entry too, if it alone is over them.
local function trim(seq, floor, bytes)
  local most_messages, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
  while floor < seq and (seq - floor > most_messages or bytes > most_bytes) do
    floor = floor + 1
    local oldest = redis.call('XRANGE', KEYS[2], floor .. '-0', floor .. '-0')[1]
    bytes = floor == seq and 0 or bytes - (oldest and #oldest[2][6] or 0)
  end
  return floor, bytes
end

local function keep(meta, kind)
  local seq, data = meta.seq + 1, ARGV[9]
  redis.call('XADD', KEYS[2], seq .. '-0', 'k', kind, 't', ARGV[8], 'd', data)
  redis.call('RPUSH', KEYS[5], ARGV[8])
  local floor, bytes = trim(seq, meta.floor, meta.bytes + #data)
  if floor > meta.floor then
    redis.call('XTRIM', KEYS[2], 'MINID', '=', (floor + 1) .. '-0')
    redis.call('LPOP', KEYS[5], floor - meta.floor)
  end
  local active = tonumber(ARGV[10]) > meta.active_ms and ARGV[10] or meta.active_ms
  redis.call('HSET', KEYS[1], 's', seq, 'f', floor, 'b', bytes, 'a', active)
  local place = meta.epoch .. ' ' .. seq .. ' ' .. kind .. ' ' .. ARGV[8]
  local rides = #data <= tonumber(ARGV[5])
  local announced = (rides and ' 1 ' or ' 0 ') .. ARGV[1] .. (rides and data or '')
  redis.call('PUBLISH', ARGV[4], 'entry ' .. ARGV[11] .. ' ' .. place .. announced)
  return {'kept', meta.unregistered, meta.epoch, seq}
end
