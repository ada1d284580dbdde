-- The prompts without a response, in no order; nil if there is no session.
-- KEYS  1 meta  2 pending

if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
return redis.call('HVALS', KEYS[2])
