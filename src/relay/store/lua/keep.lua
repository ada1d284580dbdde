-- Shared by add_prompt and add_response, which come after it in the same script: give an entry its seq, keep it,
-- trim the log and announce the entry.
--
-- KEYS  1 meta  2 log  3 ids  4 pending  5 times
-- ARGV  1 length of the session id in bytes, and the id  2 the caller's name and  3 tag, see redis_events.py
--       4 message id  5 ts  6 data  7 now in ms
-- Constants, put before all this by redis.py: MOST_MESSAGES, MOST_BYTES, CHANNEL, INLINE_BYTES, WAITS, ONE_SERVER
--
-- Messages are strings here and nothing else: what a user sent is never parsed in Lua. Numbers become strings with %d:
-- what Lua and Redis do by themselves is made for fractions, and takes longer than a look-up.

local function load_meta()
  local found = redis.call('HMGET', KEYS[1], 'e', 's', 'f', 'b', 'a', 'l', 'r')
  if not found[1] then
    return nil
  end
  -- Last, the name under which the session still has to be registered; empty if that is done.
  return {epoch = found[1], seq = tonumber(found[2]), floor = tonumber(found[3]), bytes = tonumber(found[4]),
          active_ms = found[5], unregistered = found[7] and '' or found[6]}
end

-- Whoever repeats a message wants to know it safe. Replicas confirm what was written on the same connection, which
-- may not be the one on which the message came first: so something is written, though nothing changes.
local function duplicate(meta)
  if WAITS then
    redis.call('HSET', KEYS[1], 'e', meta.epoch)
  end
  return {'duplicate', meta.unregistered}
end

-- What to drop so that the log stays within its bounds; the newest entry too, if it alone is over them.
local function trim(seq, floor, bytes)
  while floor < seq and (seq - floor > MOST_MESSAGES or bytes > MOST_BYTES) do
    floor = floor + 1
    local oldest = redis.call('XRANGE', KEYS[2], floor .. '-0', floor .. '-0')[1]
    bytes = floor == seq and 0 or bytes - (oldest and #oldest[2][6] or 0)
  end
  return floor, bytes
end

-- Whether nobody but the caller, who has the reply, hears announcements. All who do are subscribed to the channel and to
-- their own name; names are never used twice. A server that does not tell is taken to have others.
local function is_alone()
  local heard = ONE_SERVER and redis.pcall('PUBSUB', 'NUMSUB', CHANNEL, ARGV[2])
  return heard and not heard.err and heard[2] == heard[4]
end

-- Gives the entry its place, and says it as a string.
local function keep(meta, kind)
  local seq, data = meta.seq + 1, ARGV[6]
  local seq_text = string.format('%d', seq)
  redis.call('XADD', KEYS[2], seq_text .. '-0', 'k', kind, 't', ARGV[5], 'd', data)
  redis.call('RPUSH', KEYS[5], ARGV[5])
  local floor, bytes = trim(seq, meta.floor, meta.bytes + #data)
  if floor > meta.floor then
    redis.call('XTRIM', KEYS[2], 'MINID', '=', (floor + 1) .. '-0')
    redis.call('LPOP', KEYS[5], floor - meta.floor)
  end
  local active = tonumber(ARGV[7]) > tonumber(meta.active_ms) and ARGV[7] or meta.active_ms
  local floor_text, bytes_text = string.format('%d', floor), string.format('%d', bytes)
  redis.call('HSET', KEYS[1], 's', seq_text, 'f', floor_text, 'b', bytes_text, 'a', active)
  return seq_text
end

-- The end of a script that has kept an entry: announces it, if need be, and answers what is to be said to the caller.
local function kept(meta, seq_text, kind)
  local alone = is_alone()
  if not alone then
    local rides = #ARGV[6] <= INLINE_BYTES
    local place = meta.epoch .. ' ' .. seq_text .. ' ' .. kind .. ' ' .. ARGV[5]
    local message = (rides and ' 1 ' or ' 0 ') .. ARGV[1] .. (rides and ARGV[6] or '')
    redis.call('PUBLISH', CHANNEL, 'entry ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. place .. message)
  end
  return {'kept', meta.unregistered, meta.epoch, meta.seq + 1, alone and 0 or 1}
end
