-- Messages in order of seq: how many match, and a page of them; nil if there is no session.
-- KEYS  1 meta  2 log  3 times      ARGV  1 limit  2 offset  3 since, empty for all

local floor = redis.call('HGET', KEYS[1], 'f')
if not floor then
  return false
end
local limit, offset = tonumber(ARGV[1]), tonumber(ARGV[2])
if ARGV[3] == '' then
  local total = redis.call('XLEN', KEYS[2])
  if offset < total then
    for _, entry in ipairs(redis.call('XRANGE', KEYS[2], (floor + offset + 1) .. '-0', '+', 'COUNT', limit)) do
      add(entry)
    end
  end
  return {total, page}
end

-- Times are in no order. To look for them in the log itself would mean to read every message in it.
local since, total, taken, step = tonumber(ARGV[3]), 0, 0, 1000
local first = 0
while true do
  local times = redis.call('LRANGE', KEYS[3], first, first + step - 1)
  for place, ts in ipairs(times) do
    if tonumber(ts) > since then
      total = total + 1
      if total > offset and taken < limit then
        local id = (floor + first + place) .. '-0'
        add(redis.call('XRANGE', KEYS[2], id, id)[1])
        taken = taken + 1
      end
    end
  end
  if #times < step then
    return {total, page}
  end
  first = first + step
end
