-- Put a session on the list of all, after those that are there.
-- KEYS  1 sessions      ARGV  1 member
--
-- The score is a place in line and not the time of creation: two sessions may be created in the same millisecond,
-- and by servers whose clocks differ.

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or 0
  redis.call('ZADD', KEYS[1], last + 1, ARGV[1])
end
