-- Keep a prompt, make it pending and announce it. KEYS and ARGV 1 to 11: see keep.lua
-- ARGV  12 epoch for a new session; empty: answer 'new' instead of creating one  13 most pending prompts

local meta = load_meta()
if not meta then
  if ARGV[12] == '' then
    return {'new', ''}
  end
  -- First, as a server without memory refuses it; once a script has written anything, it may go on.
  redis.call('HSET', KEYS[1], 'e', ARGV[12], 'l', ARGV[12], 'c', ARGV[10])
  -- Nothing can be left of an earlier life, unless the server evicted a part of it.
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  meta = {epoch = ARGV[12], seq = 0, floor = 0, bytes = 0, active_ms = tonumber(ARGV[10]), unregistered = ARGV[12]}
elseif redis.call('HEXISTS', KEYS[3], 'p:' .. ARGV[7]) == 1 then
  return duplicate(meta)
elseif redis.call('HLEN', KEYS[4]) >= tonumber(ARGV[13]) then
  return {'too many pending', meta.unregistered}
end

local kept = keep(meta, 'p')
redis.call('HSET', KEYS[3], 'p:' .. ARGV[7], kept[4])
redis.call('HSET', KEYS[4], ARGV[7], kept[4] .. ' ' .. ARGV[8] .. ' ' .. ARGV[9])
return kept
