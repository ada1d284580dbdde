-- Give places back. KEYS and ARGV 1 to 4: see seats.lua
-- ARGV  5 how many

say(math.max(0, held() - ARGV[5]))
