"""What the tests of both kinds of clients share: threads and asyncio."""

import asyncio
import contextlib
import importlib
import re

import pytest
import redis
import redis.asyncio

from conftest import PATIENCE, inspect
from redis_rl import AsyncLimits, Fixed, LeaseLost, Limits

KINDS = pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
CLUSTERS = pytest.mark.parametrize("kind", [redis.RedisCluster, redis.asyncio.RedisCluster], ids=["threads", "asyncio"])
HOUR = Fixed("1000/h")
# Where the limits of a client are.
HALF = {redis.Redis: "redis_rl._sync", redis.asyncio.Redis: "redis_rl._async"}


def limits_of(client, **options):
    """The limits of a client of threads or of asyncio, with time for replies on a busy machine."""
    is_async = isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster))
    return (AsyncLimits if is_async else Limits)(client, **{"timeout": PATIENCE, "connect_timeout": PATIENCE, **options})


class Both:
    """Runs the same test with limits of threads and of asyncio."""

    def __init__(self, kind, **options):
        self.is_async = kind in (redis.asyncio.Redis, redis.asyncio.RedisCluster)
        self.kind = kind
        self.options = options

    def run(self, test, **options):
        async def main():
            client = self.kind(**self.options)
            limits = limits_of(client, **options)
            try:
                await test(limits)
            finally:
                if self.is_async:
                    await limits.aclose()
                    await client.aclose()
                else:
                    limits.close()
                    client.close()

        asyncio.run(main())


async def value(result):
    return await result if hasattr(result, "__await__") else result


@contextlib.asynccontextmanager
async def block(manager):
    if hasattr(manager, "__aenter__"):
        async with manager as result:
            yield result
    else:
        with manager as result:
            yield result


def skip_if_redis_py_can_t(socket, protocol):
    """redis-py 7.1 fails by itself on a Unix socket with RESP3."""
    with redis.Redis(unix_socket_path=socket, protocol=protocol) as client:
        try:
            client.ping()
        except ValueError as error:
            pytest.skip(f"redis-py {redis.__version__}: {error}")


def used(client, key):
    facts = inspect(client, key)
    return facts["used"] if facts else 0


def held(client, key):
    facts = inspect(client, key)
    return facts["held"] if facts else 0


def waiting(client):
    return client.info("rl")["rl_waiting_clients"]


def refused(client):
    """How many calls the server has answered with READONLY. redis-py 5 leaves the text as it is."""
    return int(re.findall(r"\d+", str(client.info("errorstats").get("errorstat_READONLY", "0")))[-1])


def lost(block):
    """Whether a lease of this block is lost."""
    try:
        block.check()
    except LeaseLost:
        return True
    return False


def lease_class(kind):
    return getattr(importlib.import_module(HALF[kind] + "._blocks"), "_Lease" if kind is redis.Redis else "_AsyncLease")
