-- A page of the log: epoch, floor, entries; nil if there is no session.
-- KEYS  1 meta  2 log      ARGV  1 first id  2 most entries  3 about how many bytes

local meta = redis.call('HMGET', KEYS[1], 'e', 'f')
if not meta[1] then
  return false
end
local size, from, left = 0, ARGV[1], tonumber(ARGV[2])
while left > 0 do
  -- In small steps: a page of large entries must not be fetched as a whole, only to be cut.
  local step = math.min(left, 16)
  local entries = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', step)
  for _, entry in ipairs(entries) do
    size = size + #entry[2][6]
    if size > tonumber(ARGV[3]) and #page > 0 then
      return {meta[1], meta[2], page}
    end
    add(entry)
    from = '(' .. entry[1]
  end
  if #entries < step then
    break
  end
  left = left - step
end
return {meta[1], meta[2], page}
