"""A storage for the package `limits`, and so for flask-limiter and slowapi. Import this module, and use one of its URI
schemes.

    import redis_rl.limits_storage
    Limiter(get_remote_address, app=app, storage_uri="redis-rl://localhost:6379", strategy="moving-window")

| strategy               | runs on    |                                                                                     |
|------------------------|------------|-------------------------------------------------------------------------------------|
| fixed-window           | `RL.FIXED` | also counts denied hits, as `limits` does                                           |
| moving-window          | `RL.SLIDE` | exact; a denied hit takes and writes nothing                                        |
| sliding-window-counter | `RL.SLIDE` | at most 20 KB a key; never above the limit; a hit counts up to 0.1 % longer         |

| scheme                     | for                                                                                       |
|----------------------------|-------------------------------------------------------------------------------------------|
| redis-rl://host:port/db    | one server; rediss-rl with TLS, redis-rl+unix:///path for a socket                        |
| redis-rl+cluster://a:1,b:2 | a cluster, of which some nodes are named; rediss-rl+cluster with TLS                      |
| redis-rl+sentinel://a:1,b:2/name | the primary that these Sentinels name                                               |

The Sentinels get the password of the server, unless the option `sentinel_kwargs` has another. Each is asked once, for 0.2 seconds,
unless the option has another `socket_timeout` or `retry`.
With the prefix async+ they are for `limits.aio`. A hit is sent once. The options `key_prefix`,
`timeout`, `connect_timeout` (as those of Limits) and `wrap_exceptions` are for the storage, all
others for redis-py. When Redis is down, flask-limiter and slowapi answer 500 (closed), or count in each process with
`in_memory_fallback_enabled`; flask-limiter goes on uncounted with `swallow_errors` (open). `check()` returns True if the
server would accept a hit."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import limits.aio.storage
import limits.errors
import limits.storage
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from ._async._limits import AsyncLimits
from ._errors import RateLimitError
from ._policy import Duration
from ._sync._limits import Limits

T = TypeVar("T")

# The server only counts a fixed window, because `limits` compares the count with the limit itself. This is the highest limit.
UNLIMITED = 1_000_000_000_000
SEGMENTS = 1000
STRATEGIES = ("fixed", "slide", "counter")
SCHEMES = [
    f"{scheme}{kind}"
    for scheme, kinds in (("redis-rl", ("", "+unix", "+cluster", "+sentinel")), ("rediss-rl", ("", "+cluster", "+sentinel")))
    for kind in kinds
]


def _client(uri: str, options: dict[str, Any], library: Any, sentinel: Any) -> Any:
    """The client that a URI names, of redis or of redis.asyncio."""
    scheme, rest = uri.removeprefix("async+").split("://", 1)
    kind = scheme.partition("+")[2]
    if kind not in ("cluster", "sentinel"):
        return library.Redis.from_url(scheme.replace("-rl", "", 1).replace("redis+unix", "unix", 1) + "://" + rest, **options)
    if scheme.startswith("rediss"):
        options = {"ssl": True, **options}
    user, _, hosts = rest.rpartition("@")
    hosts, _, path = hosts.partition("/")
    name, _, password = user.partition(":")
    if user:
        options = {
            "username": urllib.parse.unquote(name) or None,
            "password": urllib.parse.unquote(password) or None,
            **options,
        }
    nodes = []
    for host in filter(None, hosts.split(",")):
        address, _, port = host.rpartition(":")
        nodes.append((address.strip("[]"), int(port)))
    if kind == "sentinel":
        service = path or options.pop("service_name", None)
        if not service:
            raise limits.errors.ConfigurationError(f"{uri}: the name of the service is missing")
        # The same as in the storage of `limits`: without other settings, the Sentinels have the password of the server.
        login = {name: options[name] for name in ("username", "password") if options.get(name) is not None}
        # With redis-py's own retries, a Sentinel that does not answer would delay a hit for a minute.
        asked_once = {"socket_timeout": 0.2, "retry": None}
        sentinels = sentinel.Sentinel(nodes, sentinel_kwargs={**asked_once, **options.pop("sentinel_kwargs", login)})
        return sentinels.master_for(service, **options)
    module = redis.asyncio.cluster if library is redis.asyncio else redis.cluster
    startup = options.pop("startup_nodes", []) + [module.ClusterNode(*node) for node in nodes]
    return library.RedisCluster(startup_nodes=startup, **options)


def _used(reply: Any) -> int:
    granted, limit, remaining, _, _ = reply
    return int(limit - remaining) if granted else UNLIMITED + 1


def _whole(amount: Any) -> Any:
    """Returns 2 for 2.0. A number that is not whole is returned unchanged, and the server refuses it."""
    return int(amount) if amount % 1 == 0 else amount


def _facts(reply: Any) -> dict[str, Any]:
    """The reply of RL.INSPECT as a dict: it is a map in RESP3, a flat array in RESP2, and nil for a missing key."""
    if not reply:
        return {"used": 0, "reset_ms": 0}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2])
    return {name.decode() if isinstance(name, bytes) else name: fact for name, fact in pairs}


def _oldest_leaves_in(facts: dict[str, Any]) -> float:
    """The number of seconds until the oldest hit leaves the window, computed from the server's clock only."""
    return float(facts["reset_ms"] - (facts["newest_ms"] - facts["oldest_ms"]) + 1) / 1000


class _Commands:
    """What both storages share. Each method returns what `_sent` returns: the meaning of a reply, or a coroutine of it."""

    # redis or redis.asyncio, its module for Sentinel, and the class of limits for its clients.
    _libraries: tuple[Any, Any, Any]

    def __init__(
        self,
        uri: str,
        key_prefix: str = "limits",
        timeout: Duration = 0.25,
        connect_timeout: Duration = 1.0,
        wrap_exceptions: bool = False,
        **options: Any,
    ) -> None:
        # That of the storage.
        super().__init__(uri, wrap_exceptions=wrap_exceptions)  # type: ignore[call-arg]
        library, sentinel, limits_class = self._libraries
        self.key_prefix = key_prefix
        self.storage = _client(uri, options, library, sentinel)
        self.limits = limits_class(self.storage, timeout=timeout, connect_timeout=connect_timeout)

    def _sent(self, meaning: Callable[[Any], T], *commands: Sequence[Any], otherwise: T | None = None) -> Any:
        """Sends commands, whose first argument is their key, and returns what the last reply means. `otherwise` takes the
        place of an error."""
        raise NotImplementedError

    @property
    def base_exceptions(self) -> type[Exception]:
        return RateLimitError

    # Each strategy has its own keys, because an item may be used with several strategies.
    def _key(self, strategy: str, key: str) -> bytes:
        return f"{self.key_prefix}:{strategy}:{key}".encode()

    def _inspect(self, strategy: str, key: str, meaning: Callable[[dict[str, Any]], T]) -> Any:
        return self._sent(lambda reply: meaning(_facts(reply)), ("RL.INSPECT", self._key(strategy, key)))

    def _slide(self, strategy: str, key: str, limit: int, expiry: int, amount: Any, *options: Any) -> Any:
        full = self._key(strategy, key)
        if amount == 0:
            # Always passes, and asks the server whether it is there.
            return self._sent(lambda _: True, ("RL.INSPECT", full))
        return self._sent(lambda reply: bool(reply[0] > 0), ("RL.SLIDE", full, limit, expiry, *options, "COST", _whole(amount)))

    # The server refuses a cost of 0; for `limits` it is a hit that always passes.
    def incr(self, key: str, expiry: float, amount: int = 1) -> Any:
        if amount == 0:
            return self.get(key)
        return self._sent(_used, ("RL.FIXED", self._key("fixed", key), UNLIMITED, expiry, "COST", _whole(amount)))

    def get(self, key: str) -> Any:
        return self._inspect("fixed", key, lambda facts: int(facts["used"]))

    def get_expiry(self, key: str) -> Any:
        return self._inspect("fixed", key, lambda facts: time.time() + facts["reset_ms"] / 1000)

    # A refund on a key that is never used writes nothing. But the server refuses it in the same cases as a hit: the module is
    # not loaded, the server is a replica, memory is full, or the user has no write permission.
    def check(self) -> Any:
        words = ("RL.FIXED", self._key("check", ""), 1, 1, "REFUND", 1)
        return self._sent(lambda reply: len(reply) == 5, words, otherwise=False)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> Any:
        return self._slide("slide", key, limit, expiry, amount)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> Any:
        def window(facts: dict[str, Any]) -> tuple[float, int]:
            start = time.time() - expiry + _oldest_leaves_in(facts) if facts["used"] else time.time()
            return start, facts["used"]

        return self._inspect("slide", key, window)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> Any:
        return self._slide("counter", key, limit, expiry, amount, "SEGMENTS", SEGMENTS)

    def get_sliding_window(self, key: str, expiry: int) -> Any:
        # The count of the previous window is 0, because nothing is estimated. `limits` takes the time modulo the expiry.
        def window(facts: dict[str, Any]) -> tuple[int, float, int, float]:
            return 0, 0.0, facts["used"], min(_oldest_leaves_in(facts), expiry - 0.001) if facts["used"] else 0.0

        return self._inspect("counter", key, window)

    # One command for each key, because they may have different slots.
    def clear(self, key: str) -> Any:
        return self._sent(lambda _: None, *(("DEL", self._key(strategy, key)) for strategy in STRATEGIES))

    def clear_sliding_window(self, key: str, expiry: int) -> Any:
        return self.clear(key)


class RedisRLStorage(
    _Commands, limits.storage.Storage, limits.storage.MovingWindowSupport, limits.storage.SlidingWindowCounterSupport
):
    STORAGE_SCHEME = SCHEMES
    _libraries = (redis, redis.sentinel, Limits)

    def _sent(self, meaning: Callable[[Any], T], *commands: Sequence[Any], otherwise: T | None = None) -> Any:
        try:
            reply = None
            for words in commands:
                reply, _ = self.limits._calls.call(words, words[1])
            return meaning(reply)
        except Exception:  # Also if a server that is not Redis sends bytes that redis-py can't read.
            if otherwise is None:
                raise
            return otherwise

    def reset(self) -> int | None:
        return sum(int(self.storage.unlink(key)) for key in self.storage.scan_iter(f"{self.key_prefix}:*", 1000))


class AsyncRedisRLStorage(
    _Commands,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    STORAGE_SCHEME = [f"async+{scheme}" for scheme in SCHEMES]
    _libraries = (redis.asyncio, redis.asyncio.sentinel, AsyncLimits)

    async def _sent(self, meaning: Callable[[Any], T], *commands: Sequence[Any], otherwise: T | None = None) -> Any:
        try:
            reply = None
            for words in commands:
                reply, _ = await self.limits._calls.call(words, words[1])
            return meaning(reply)
        except Exception:
            if otherwise is None:
                raise
            return otherwise

    async def reset(self) -> int | None:
        return sum(
            [int(await self.storage.unlink(key)) async for key in self.storage.scan_iter(f"{self.key_prefix}:*", 1000)]
        )
