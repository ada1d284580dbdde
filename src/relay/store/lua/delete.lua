-- Forget a session and announce that; returns its life, nil if there is no session.
-- KEYS  1 meta  2 log  3 ids  4 pending  5 times      ARGV  1 channel  2 announcement

local life = redis.call('HGET', KEYS[1], 'l')
if not life then
  return false
end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return life
