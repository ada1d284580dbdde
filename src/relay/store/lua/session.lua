-- What is known of a session: life, created, active, messages, pending; nil if there is none.
-- KEYS  1 meta  2 log  3 pending

local meta = redis.call('HMGET', KEYS[1], 'l', 'c', 'a')
if not meta[1] then
  return false
end
return {meta[1], meta[2], meta[3], redis.call('XLEN', KEYS[2]), redis.call('HLEN', KEYS[3])}
