-- Shared by read and history, which come after it in the same script: a page of the log, as a flat list of id, kind, ts
-- and data of each entry. As the stream gives them, the caller would have to take two lists apart for each.

local page = {}

local function add(entry)
  local last, fields = #page, entry[2]
  page[last + 1], page[last + 2], page[last + 3], page[last + 4] = entry[1], fields[2], fields[4], fields[6]
end
