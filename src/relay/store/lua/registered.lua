-- Note in the session itself that it is on the list of all; 0 if it has gone meanwhile.
-- KEYS  1 meta      ARGV  1 life

if redis.call('HGET', KEYS[1], 'l') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'r', '1')
return 1
