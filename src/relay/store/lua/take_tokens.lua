-- Take tokens from a bucket: how many were granted, and in how many seconds there is one, as text: a number would lose
-- its fraction on the way.
-- KEYS  1 bucket      ARGV  1 how many are wanted  2 refilled per second  3 how many it holds  4 epsilon, see local.py
--
-- The bucket says how many of its tokens are used and when that was, in µs of this server: "2.5 1700000000000000".
-- It is gone when it is full.

local want, per_second, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

local used = 0
local said = redis.call('GET', KEYS[1])
if said then
  local before, at_us = string.match(said, '^(%S+) (%S+)$')
  -- After a failover this may be a server whose clock is behind.
  used = math.max(0, before - math.max(0, now_us - at_us) / 1000000 * per_second)
end
local there = math.max(0, math.floor(burst - used + ARGV[4]))
local granted = math.min(want, there)
if granted > 0 then
  used = used + granted
  local full_ms = math.ceil(used / per_second * 1000)
  redis.call('SET', KEYS[1], string.format('%.17g %.0f', used, now_us), 'PX', string.format('%.0f', full_ms))
end
return {granted, there > 0 and '0' or string.format('%.17g', (1 - burst + used) / per_second)}
