-- What one process asks and gives back at one endpoint, or asks for one tenant, at one moment. Runs as one step.
--
-- KEYS[1]  a hash: the token bucket, and who is next for a lease
-- KEYS[2]  a sorted set: the leases by their ends; for endpoints only
-- ARGV     tokens per second (0: no rate); the burst; how many leases there are (0: none is asked for); how long one
--          lives; how many are given back; these; and for each ask its lease and how many tokens it wants
--
-- Answers, for each ask, how long to wait (0: granted), and at last how many millionths of a token are left.
-- All times are in microseconds on this server's clock, so that nobody else's matters.

local per_second, burst, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lifetime, first = tonumber(ARGV[4]), 6 + tonumber(ARGV[5])

for index = 6, first - 1 do
  redis.call('ZREM', KEYS[2], ARGV[index])
end
if first > #ARGV then
  return {}
end

-- No lease lives longer. What ends later was written before the clock was set back.
local LONGEST = 120000000
-- When to ask again for a lease: whoever is next, and all others, who ask less often.
local NEXT_WAIT, OTHER_WAIT = 20000, 80000
-- Who has asked for so long goes before all others.
local PATIENCE = 100000
-- Who was next and has not asked again for so long does not want it any more.
local LOST = 100000

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at', 'rate', 'burst', 'next', 'since', 'seen')

local tokens = burst
if per_second > 0 and state[1] then
  -- What passed until now, passed under the rate that held then. A clock that was set back gives nothing.
  local gained = math.max(0, now - tonumber(state[2])) * tonumber(state[3]) / 1000000
  tokens = math.min(tonumber(state[1]) + gained, tonumber(state[4]), burst)
end

local used, next_lease, since, seen = 0, false, 0, 0
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.0f', now + LONGEST), '+inf')
  used = redis.call('ZCARD', KEYS[2])
  if state[5] and math.abs(now - tonumber(state[7])) < LOST then
    next_lease, since, seen = state[5], tonumber(state[6]), tonumber(state[7])
  end
end

local answers, ahead = {}, 0
for index = first, #ARGV, 2 do
  local lease, count, wait = ARGV[index], tonumber(ARGV[index + 1]), 0
  if most == 0 or not redis.call('ZSCORE', KEYS[2], lease) then
    if most > 0 then
      local free = most - used
      if next_lease and next_lease ~= lease and now - since >= PATIENCE then
        free = free - 1
      end
      if free < 1 then
        wait = OTHER_WAIT
        if not next_lease then
          next_lease, since = lease, now
        end
        if next_lease == lease then
          wait, seen = NEXT_WAIT, now
        end
      end
    end
    if wait == 0 and per_second > 0 then
      local missing = math.min(count, burst) + ahead - tokens
      if missing > 0 then
        -- A microsecond more, so that rounding makes nobody come too early.
        wait = math.ceil(missing / per_second * 1000000) + 1
        -- Requests wait and come again, so the next one waits for its own token. Publishers may never come again.
        if most > 0 then
          ahead = ahead + count
        end
      else
        tokens = tokens - count
      end
    end
    if wait == 0 and most > 0 then
      redis.call('ZADD', KEYS[2], now + lifetime, lease)
      used = used + 1
      if next_lease == lease then
        next_lease = false
      end
    end
  end
  answers[#answers + 1] = wait
end

-- Nothing stays when nobody asks any more: a bucket that is full is as good as none.
local idle_ms = 1000
if most > 0 then
  redis.call('PEXPIRE', KEYS[2], LONGEST / 1000)
  if next_lease then
    redis.call('HSET', KEYS[1], 'next', next_lease, 'since', since, 'seen', seen)
  elseif state[5] then
    redis.call('HDEL', KEYS[1], 'next', 'since', 'seen')
  end
end
if per_second > 0 then
  redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now, 'rate', per_second, 'burst', burst)
  idle_ms = idle_ms + math.ceil((burst - tokens) / per_second * 1000)
end
redis.call('PEXPIRE', KEYS[1], idle_ms)

answers[#answers + 1] = math.floor(tokens * 1000000)
return answers
