#!lua flags=no-writes,allow-stale
-- For redis_exporter (option -script): all counters of `INFO rl`, and the keys that were denied most often recently.
-- The exporter shows each result as redis_script_values{key="..."}:
--   rl_loaded                     1, or 0 if this server has not loaded the module
--   rl_version:0.1.0              1
--   rl_gcra_granted, ...          a field of `INFO rl`
--   rl_top_denials:0:user:42      the recent denials of key user:42 in database 0, as RL.TOP counts them
--
-- In names of keys, double quotes, backslashes and all bytes other than printable ASCII are escaped. redis-cli reads the
-- escaped name between double quotes: RL.INSPECT "caf\xc3\xa9".

local most = 10 -- The most keys to show, from 1 to 1024. Each is a time series of its own.
local least = 5 -- Keys with fewer recent denials than this are left out.

local results = {}
local function add(name, value)
  results[#results + 1] = name
  results[#results + 1] = value
end

local info = redis.call('INFO', 'rl')
local version = string.match(info, 'rl_version:([^\r\n]+)')
add('rl_loaded', version and '1' or '0')
if not version then
  return results
end
add('rl_version:' .. version, '1')
for name, value in string.gmatch(info, '(rl_[a-z_]+):(%d+)\r') do
  add(name, value)
end

local function escaped(key)
  local function code(byte)
    return string.format('\\x%02x', string.byte(byte))
  end
  return (string.gsub(string.gsub(key, '["\\]', '\\%0'), '[^ -~]', code))
end

for _, row in ipairs(redis.call('RL.TOP', most)) do
  local key, db, denials = row[2], row[4], row[6]
  if denials >= least then
    add('rl_top_denials:' .. db .. ':' .. escaped(key), string.format('%.0f', denials))
  end
end
return results
