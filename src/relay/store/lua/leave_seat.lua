-- Give a place back. KEYS and ARGV: see seats.lua

say(math.max(0, held() - 1))
