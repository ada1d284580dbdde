-- Keep a prompt, make it pending and announce it. KEYS, ARGV 1 to 7 and other constants: see keep.lua
-- ARGV  8 epoch for a new session; empty: answer 'new' instead of creating one      Constant  MOST_PENDING

local meta = load_meta()
if not meta then
  if ARGV[8] == '' then
    return {'new', ''}
  end
  -- First, as a server without memory refuses it; once a script has written anything, it may go on.
  redis.call('HSET', KEYS[1], 'e', ARGV[8], 'l', ARGV[8], 'c', ARGV[7])
  -- Nothing can be left of an earlier life, unless the server evicted a part of it.
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  meta = {epoch = ARGV[8], seq = 0, floor = 0, bytes = 0, active_ms = ARGV[7], unregistered = ARGV[8]}
elseif redis.call('HEXISTS', KEYS[3], 'p:' .. ARGV[4]) == 1 then
  return duplicate(meta)
elseif redis.call('HLEN', KEYS[4]) >= MOST_PENDING then
  return {'too many pending', meta.unregistered}
end

local seq = keep(meta, 'p')
redis.call('HSET', KEYS[3], 'p:' .. ARGV[4], seq)
redis.call('HSET', KEYS[4], ARGV[4], seq .. ' ' .. ARGV[5] .. ' ' .. ARGV[6])
return kept(meta, seq, 'p')
