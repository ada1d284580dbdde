-- Shared by take_seat, leave_seats and hold_seat, which come after it in the same script: what an instance says of its
-- places of one kind in one session.
--
-- KEYS  1 seats
-- ARGV  1 instance  2 kind  3 for how many ms a word counts  4 how many places it knows to be its own
--
-- A field is <instance>:<kind>, and says how many and when: "2 1700000000000". The time is this server's, in ms.

local own = ARGV[1] .. ':' .. ARGV[2]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- None is written down as 0. If nothing is written down, it was lost: then the instance knows.
local function held()
  local said = redis.call('HGET', KEYS[1], own)
  return tonumber(said and string.match(said, '^%d+') or ARGV[4])
end

local function say(count)
  redis.call('HSET', KEYS[1], own, string.format('%.0f %.0f', count, now_ms))
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
