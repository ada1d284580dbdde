-- Note when a session was last in use; an earlier time and an unknown session change nothing.
-- KEYS  1 meta      ARGV  1 time in ms

local active_ms = redis.call('HGET', KEYS[1], 'a')
if active_ms and tonumber(active_ms) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'a', ARGV[1])
end
