-- Keep a response, end its prompt's wait and announce it. KEYS, ARGV 1 to 7 and constants: see keep.lua
-- ARGV  8 client_msg_id  9 fingerprint

local meta = load_meta()
if not meta then
  return {'no session', ''}
end
local known = redis.call('HGET', KEYS[3], 'a:' .. ARGV[4])
if known then
  return known == ARGV[9] and duplicate(meta) or {'conflict', meta.unregistered}
end
if redis.call('HEXISTS', KEYS[3], 'p:' .. ARGV[8]) == 0 then
  return {'no prompt', meta.unregistered}
end

local seq = keep(meta, 'a')
redis.call('HSET', KEYS[3], 'a:' .. ARGV[4], ARGV[9])
redis.call('HDEL', KEYS[4], ARGV[8])
return kept(meta, seq, 'a')
