"""A storage for the package `limits`, and so for flask-limiter and slowapi. Import this module, and use its URI scheme.

    import limits_storage
    Limiter(get_remote_address, app=app, storage_uri="redis-rl://localhost:6379", strategy="moving-window")

| strategy               | runs on    |                                                                                     |
|------------------------|------------|-------------------------------------------------------------------------------------|
| fixed-window           | `RL.FIXED` | also counts denied hits, as `limits` does                                           |
| moving-window          | `RL.SLIDE` | exact; a denied hit takes and writes nothing                                        |
| sliding-window-counter | `RL.SLIDE` | at most 8 KB a key; never above the limit; a hit counts up to 0.1 % longer          |

The schemes are redis-rl, rediss-rl (TLS) and redis-rl+unix, and for `limits.aio` each of these with the prefix async+. All
options except `key_prefix` and `wrap_exceptions` are passed to redis-py; set `socket_timeout`. When Redis is down,
flask-limiter and slowapi answer 500 (closed), or count in each process with `in_memory_fallback_enabled`; flask-limiter goes on
uncounted with `swallow_errors` (open). `check()` returns True if the server would accept a hit, and False otherwise, for any
reason.

A cost is a whole number, and may be a float (`cost=2.0`). The server answers any other cost with an error.
"""

import time

import limits.aio.storage
import limits.storage
import redis
import redis.asyncio

# The server only counts a fixed window, because `limits` compares the count with the limit itself. This is the highest limit.
UNLIMITED = 1_000_000_000_000
SEGMENTS = 1000


def _used(reply):
    granted, limit, remaining, _, _ = reply
    return limit - remaining if granted else UNLIMITED + 1


def _granted(reply):
    return reply[0] > 0


def _whole(amount):
    """Returns 2 for 2.0. A number that is not whole is returned unchanged, and the server refuses it."""
    return int(amount) if amount % 1 == 0 else amount


def _facts(reply):
    """The reply of RL.INSPECT as a dict: it is a map in RESP3, a flat array in RESP2, and nil for a missing key."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2])) if reply else {"used": 0, "reset_ms": 0}


def _oldest_leaves_in(facts):
    """The number of seconds until the oldest hit leaves the window, computed from the server's clock only."""
    return (facts["reset_ms"] - (facts["newest_ms"] - facts["oldest_ms"]) + 1) / 1000


class _Commands:
    """Each method sends one command by `_call`, and converts the reply to the value that `limits` expects."""

    SCHEMES = ("redis-rl", "rediss-rl", "redis-rl+unix")

    def __init__(self, uri, key_prefix="limits", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        uri = uri.removeprefix("async+").replace("-rl", "", 1).replace("redis+unix", "unix", 1)
        self.storage = self.CLIENT.from_url(uri, **options, decode_responses=True)

    @property
    def base_exceptions(self):
        return redis.RedisError

    # Each strategy has its own keys ("fixed", "slide", "counter"), because an item may be used with several strategies.
    def _key(self, strategy, key):
        return f"{self.key_prefix}:{strategy}:{key}"

    def _inspect(self, strategy, key, meaning):
        return self._call(lambda reply: meaning(_facts(reply)), "RL.INSPECT", self._key(strategy, key))

    def _slide(self, strategy, key, limit, expiry, amount, *options):
        if amount == 0:
            return self._call(lambda _: True, "PING")
        command = ("RL.SLIDE", self._key(strategy, key), limit, expiry, *options)
        return self._call(_granted, *command, "COST", _whole(amount))

    # A refund on a key that is never used writes nothing. But the server refuses it in the same cases as a hit: the module is
    # not loaded, the server is a replica, memory is full, or the user has no write permission.
    def _probe(self):
        return self._call(lambda reply: len(reply) == 5, "RL.FIXED", self._key("check", ""), 1, 1, "REFUND", 1)

    # The server refuses a cost of 0; for `limits` it is a hit that always passes.
    def incr(self, key, expiry, amount=1):
        if amount == 0:
            return self.get(key)
        return self._call(_used, "RL.FIXED", self._key("fixed", key), UNLIMITED, expiry, "COST", _whole(amount))

    def get(self, key):
        return self._inspect("fixed", key, lambda facts: facts["used"])

    def get_expiry(self, key):
        return self._inspect("fixed", key, lambda facts: time.time() + facts["reset_ms"] / 1000)

    def acquire_entry(self, key, limit, expiry, amount=1):
        return self._slide("slide", key, limit, expiry, amount)

    def get_moving_window(self, key, limit, expiry):
        def window(facts):
            start = time.time() - expiry + _oldest_leaves_in(facts) if facts["used"] else time.time()
            return start, facts["used"]

        return self._inspect("slide", key, window)

    def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self._slide("counter", key, limit, expiry, amount, "SEGMENTS", SEGMENTS)

    def get_sliding_window(self, key, expiry):
        # The count of the previous window is 0, because nothing is estimated. `limits` takes the time modulo the expiry.
        def window(facts):
            return 0, 0.0, facts["used"], min(_oldest_leaves_in(facts), expiry - 0.001) if facts["used"] else 0.0

        return self._inspect("counter", key, window)

    def clear(self, key):
        keys = (self._key(strategy, key) for strategy in ("fixed", "slide", "counter"))
        return self._call(lambda _: None, "DEL", *keys)

    def clear_sliding_window(self, key, expiry):
        return self.clear(key)


class RedisRLStorage(
    _Commands, limits.storage.Storage, limits.storage.MovingWindowSupport, limits.storage.SlidingWindowCounterSupport
):
    STORAGE_SCHEME = [*_Commands.SCHEMES]
    CLIENT = redis.Redis

    def _call(self, meaning, *command):
        return meaning(self.storage.execute_command(*command))

    # Catches any exception, because a server that is not Redis may send bytes that redis-py can't decode.
    def check(self):
        try:
            return self._probe()
        except Exception:
            return False

    def reset(self):
        return sum(self.storage.unlink(key) for key in self.storage.scan_iter(f"{self.key_prefix}:*", 1000))


class AsyncRedisRLStorage(
    _Commands,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _Commands.SCHEMES]
    CLIENT = redis.asyncio.Redis

    async def _call(self, meaning, *command):
        return meaning(await self.storage.execute_command(*command))

    async def check(self):
        try:
            return await self._probe()
        except Exception:
            return False

    async def reset(self):
        return sum([await self.storage.unlink(key) async for key in self.storage.scan_iter(f"{self.key_prefix}:*", 1000)])
