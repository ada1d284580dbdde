-- Take a place unless all are taken; 1 if it was taken, else 0. KEYS and ARGV 1 to 4: see seats.lua
-- ARGV  5 most places

local taken = held()
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local field, count, said_ms = fields[i], string.match(fields[i + 1], '^(%d+) (%d+)$')
  if field ~= own then
    if now_ms - said_ms >= tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[1], field)
    elseif string.match(field, '[^:]+$') == ARGV[2] then
      taken = taken + count
    end
  end
end
if taken >= tonumber(ARGV[5]) then
  return 0
end
say(held() + 1)
return 1
