"""The storage for the package `limits`: its strategies on one server, on a cluster and behind Sentinel."""

import asyncio
import contextlib
import inspect as inspect_module
import socket as socket_module
import time

import limits
import limits.aio.strategies
import limits.errors
import limits.storage
import limits.strategies
import pytest
import redis

from conftest import PATIENCE, running_sentinel, running_server
from helpers import skip_if_redis_py_can_t

import redis_rl.limits_storage  # noqa: F401: registers its schemes
from redis_rl import NoModule, Unavailable

STRATEGIES = {
    "fixed-window": ("FixedWindowRateLimiter", "fixed"),
    "moving-window": ("MovingWindowRateLimiter", "slide"),
    "sliding-window-counter": ("SlidingWindowCounterRateLimiter", "counter"),
}
ITEM = limits.parse("10/hour")


async def value(result):
    return await result if inspect_module.isawaitable(result) else result


async def strategy_works(uri, name, **options):
    storage = limits.storage.storage_from_string(uri, **{"timeout": PATIENCE, **options})
    module = limits.aio.strategies if uri.startswith("async+") else limits.strategies
    limiter = getattr(module, STRATEGIES[name][0])(storage)
    try:
        assert await value(storage.check())
        await value(storage.reset())
        assert [await value(limiter.hit(ITEM, "ada")) for _ in range(11)] == [True] * 10 + [False]
        assert not await value(limiter.test(ITEM, "ada")) and await value(limiter.test(ITEM, "bob"))
        stats = await value(limiter.get_window_stats(ITEM, "ada"))
        assert stats.remaining == 0 and 3500 < stats.reset_time - time.time() < 3610
        assert await value(limiter.hit(ITEM, "bob", cost=10)) and not await value(limiter.hit(ITEM, "bob"))
        await value(limiter.clear(ITEM, "ada"))
        assert await value(limiter.hit(ITEM, "ada", cost=3))
        assert (await value(limiter.get_window_stats(ITEM, "ada"))).remaining == 7
        assert await value(storage.reset()) == 2
        assert await value(limiter.hit(ITEM, "bob"))
    finally:
        if uri.startswith("async+"):
            await storage.limits.aclose()
            await storage.storage.aclose()
        else:
            storage.limits.close()
            storage.storage.close()


KINDS = pytest.mark.parametrize("prefix", ["", "async+"], ids=["threads", "asyncio"])
NAMES = pytest.mark.parametrize("name", STRATEGIES)


@KINDS
@NAMES
@pytest.mark.parametrize("options", [{}, {"protocol": 3, "decode_responses": True}], ids=str)
def test_one_server(prefix, name, options, socket):
    if not prefix:
        skip_if_redis_py_can_t(socket, options.get("protocol", 2))
    asyncio.run(strategy_works(f"{prefix}redis-rl+unix://{socket}", name, **options))


@KINDS
@NAMES
def test_cluster(prefix, name, cluster):
    hosts = ",".join(f"127.0.0.1:{port}" for port in cluster.ports[:2])
    asyncio.run(strategy_works(f"{prefix}redis-rl+cluster://{hosts}", name))


@KINDS
def test_sentinel(prefix):
    with running_sentinel() as watched:
        uri = f"{prefix}redis-rl+sentinel://127.0.0.1:{watched.sentinel_port}/limits"
        for name in STRATEGIES:
            asyncio.run(strategy_works(uri, name))
        with pytest.raises(limits.errors.ConfigurationError, match="service"):
            limits.storage.storage_from_string(uri.removesuffix("/limits"))


@KINDS
def test_a_sentinel_that_does_not_answer_is_asked_once(prefix):
    async def test(uri):
        storage = limits.storage.storage_from_string(uri, timeout=PATIENCE, connect_timeout=PATIENCE)
        # On a busy machine the other Sentinel may be too slow, too.
        for attempt in range(1, 100):
            with contextlib.suppress(Unavailable):
                if await value(storage.acquire_entry("k", 10, 3600)):
                    break
        if prefix:
            await storage.limits.aclose()
            await storage.storage.aclose()
        return attempt

    with running_sentinel() as watched, socket_module.create_server(("127.0.0.1", 0), backlog=200) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{watched.sentinel_port}"
        attempts = asyncio.run(test(f"{prefix}redis-rl+sentinel://{hosts}/limits"))
        silent.setblocking(False)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while silent.accept():
                asked += 1
        assert attempts < 99 and 1 <= asked <= attempts


@KINDS
def test_a_password(prefix):
    with running_server("--requirepass", "se:cret/1") as (_, socket):
        asyncio.run(strategy_works(f"{prefix}redis-rl+unix://:se%3Acret%2F1@{socket}", "moving-window"))


@KINDS
def test_a_hit_is_sent_once(prefix, proxy):
    async def test():
        storage = limits.storage.storage_from_string(f"{prefix}redis-rl+unix://{proxy.server_address}", timeout=PATIENCE)
        assert await value(storage.acquire_entry("k", 10, 3600))
        proxy.lose("reply", "RL.SLIDE")
        with pytest.raises(Unavailable):
            await value(storage.acquire_entry("k", 10, 3600))
        assert (await value(storage.get_moving_window("k", 10, 3600)))[1] == 2
        if prefix:
            await storage.limits.aclose()
            await storage.storage.aclose()

    asyncio.run(test())


@KINDS
def test_no_server_and_no_module(prefix, dead_socket):
    async def test(socket, error):
        storage = limits.storage.storage_from_string(f"{prefix}redis-rl+unix://{socket}", timeout=0.5)
        assert await value(storage.check()) is False
        with pytest.raises(error):
            await value(storage.incr("k", 60))
        if prefix:
            await storage.limits.aclose()
            await storage.storage.aclose()

    asyncio.run(test(dead_socket, Unavailable))
    with running_server(module=None) as (_, socket):
        asyncio.run(test(socket, NoModule))
        with contextlib.closing(redis.Redis(unix_socket_path=socket)) as client:
            assert client.dbsize() == 0
