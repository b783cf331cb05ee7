"""A storage for the package `limits`, and so for flask-limiter and slowapi: import this module, and name its scheme.

    import limits_storage
    Limiter(get_remote_address, app=app, storage_uri="redis-rl://localhost:6379", strategy="moving-window")

| strategy               | runs on    |                                                                                     |
|------------------------|------------|-------------------------------------------------------------------------------------|
| fixed-window           | `RL.FIXED` | counts denied hits too, as `limits` has it                                          |
| moving-window          | `RL.SLIDE` | exact; a denied hit takes and writes nothing                                        |
| sliding-window-counter | `RL.SLIDE` | at most 8 KB a key; never above the limit, a hit counts up to 0.1 % longer          |

Schemes: redis-rl, rediss-rl (TLS), redis-rl+unix, and each with async+ before it, for `limits.aio`. Options beyond
`key_prefix` and `wrap_exceptions` are redis-py's: set `socket_timeout`. What happens when Redis is down is the caller's choice:
flask-limiter and slowapi answer 500 (closed), or count in each process with `in_memory_fallback_enabled`; flask-limiter goes on
uncounted with `swallow_errors` (open). `check()` is True if the server would take a hit, and False whatever the reason is.

A cost is a whole number, also as a float (`cost=2.0`); the server answers any other with an error.
"""

import time

import limits.aio.storage
import limits.storage
import redis
import redis.asyncio

# `limits` compares the count of a fixed window with the limit itself: here it only counts. The highest limit there is.
UNLIMITED = 1_000_000_000_000
SEGMENTS = 1000


def _used(reply):
    granted, limit, remaining, _, _ = reply
    return limit - remaining if granted else UNLIMITED + 1


def _granted(reply):
    return reply[0] > 0


def _whole(amount):
    """2 for 2.0. What is no whole number stays as it is, for the server to refuse."""
    return int(amount) if amount % 1 == 0 else amount


def _facts(reply):
    """RL.INSPECT: a map in RESP3, a flat array in RESP2, nil for a missing key."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2])) if reply else {"used": 0, "reset_ms": 0}


def _oldest_leaves_in(facts):
    """In how many seconds the oldest hit leaves the window, by the server's clock alone."""
    return (facts["reset_ms"] - (facts["newest_ms"] - facts["oldest_ms"]) + 1) / 1000


class _Commands:
    """Each method is one command, sent by `_call`, and what its reply means to `limits`."""

    SCHEMES = ("redis-rl", "rediss-rl", "redis-rl+unix")

    def __init__(self, uri, key_prefix="limits", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        uri = uri.removeprefix("async+").replace("-rl", "", 1).replace("redis+unix", "unix", 1)
        self.storage = self.CLIENT.from_url(uri, **options, decode_responses=True)

    @property
    def base_exceptions(self):
        return redis.RedisError

    # A strategy has keys of its own ("fixed", "slide", "counter"), since an item may go through several of them.
    def _key(self, strategy, key):
        return f"{self.key_prefix}:{strategy}:{key}"

    def _inspect(self, strategy, key, meaning):
        return self._call(lambda reply: meaning(_facts(reply)), "RL.INSPECT", self._key(strategy, key))

    def _slide(self, strategy, key, limit, expiry, amount, *options):
        if amount == 0:
            return self._call(lambda _: True, "PING")
        command = ("RL.SLIDE", self._key(strategy, key), limit, expiry, *options)
        return self._call(_granted, *command, "COST", _whole(amount))

    # A refund to a key that nobody uses writes nothing. But the server refuses it where it would refuse a hit: when the module
    # is not loaded, on a replica, when memory is full, or when the user may not write.
    def _probe(self):
        return self._call(lambda reply: len(reply) == 5, "RL.FIXED", self._key("check", ""), 1, 1, "REFUND", 1)

    # A cost of 0 is nothing to the server, and to `limits` a hit that always passes.
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
        # No window before this one: nothing is estimated. `limits` takes the time modulo the expiry.
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

    # Any exception: another kind of server may answer with what redis-py can't decode.
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
