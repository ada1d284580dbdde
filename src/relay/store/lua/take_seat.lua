-- Take a place unless all are taken; returns how many are taken then, or if there was none left, 0 if they are all this
-- instance's own, else a number below that. KEYS and ARGV 1 to 4: see seats.lua
-- ARGV  5 most places

local mine, others = held(), 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local field, count, said_ms = fields[i], string.match(fields[i + 1], '^(%d+) (%d+)$')
  if field ~= own then
    if now_ms - said_ms >= tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[1], field)
    elseif string.match(field, '[^:]+$') == ARGV[2] then
      others = others + count
    end
  end
end
if mine + others >= tonumber(ARGV[5]) then
  return -others
end
say(mine + 1)
return mine + others + 1
