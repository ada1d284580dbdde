-- Say again what is said already, or what the instance knows if that is in doubt; returns how many places that makes.
-- KEYS and ARGV 1 to 4: see seats.lua      ARGV  5 '1' if it is in doubt

local count = ARGV[5] == '1' and tonumber(ARGV[4]) or held()
say(count)
return count
