-- Give the log a new epoch, if it still has the one expected; 0 if there is no session.
-- KEYS  1 meta      ARGV  1 expected  2 new

local epoch = redis.call('HGET', KEYS[1], 'e')
if not epoch then
  return 0
end
if epoch == ARGV[1] then
  redis.call('HSET', KEYS[1], 'e', ARGV[2])
end
return 1
