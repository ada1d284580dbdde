-- Keep a response, end its prompt's wait and announce it. KEYS and ARGV 1 to 11: see keep.lua
-- ARGV  12 client_msg_id  13 fingerprint

local meta = load_meta()
if not meta then
  return {'no session', ''}
end
local known = redis.call('HGET', KEYS[3], 'a:' .. ARGV[7])
if known then
  return known == ARGV[13] and duplicate(meta) or {'conflict', meta.unregistered}
end
if redis.call('HEXISTS', KEYS[3], 'p:' .. ARGV[12]) == 0 then
  return {'no prompt', meta.unregistered}
end

local kept = keep(meta, 'a')
redis.call('HSET', KEYS[3], 'a:' .. ARGV[7], ARGV[13])
redis.call('HDEL', KEYS[4], ARGV[12])
return kept
