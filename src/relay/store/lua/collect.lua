-- Forget a session if it is idle, and announce that. Looks again at the moment of deletion, so that two instances
-- may collect at once and a prompt that has just come is safe. Answers 'deleted', 'kept' or 'gone'.
-- KEYS  1 meta  2 log  3 ids  4 pending  5 times      ARGV  1 channel  2 announcement  3 life  4 idle since, in ms

local meta = redis.call('HMGET', KEYS[1], 'l', 'a')
if meta[1] ~= ARGV[3] then
  return 'gone'
end
if tonumber(meta[2]) > tonumber(ARGV[4]) or redis.call('HLEN', KEYS[4]) > 0 then
  return 'kept'
end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 'deleted'
