"""run.py appends this to the conftest.py of flask-limiter, whose fixtures start servers with docker. Here, Redis is a server that
run.py has started, and the storage on it takes the place of the one in memory, which most tests use. The server's clock follows
that of the tests, which they freeze and move forward: see tests/support/clock.c."""

import os
import struct
import time
import uuid

import pytest
import redis

import redis_rl.limits_storage


def follow():
    """Moves the server's clock to that of the test."""
    steady = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with open(os.environ["PEER_clock"], "r+b") as file:
        file.write(struct.pack("=qq", steady, int(time.time() * 1_000_000) - steady))


class Following(redis_rl.limits_storage.RedisRLStorage):
    """Registered for the scheme of the storage in memory."""

    STORAGE_SCHEME = ["memory"]

    def __init__(self, uri, **options):
        # Each storage in memory is one of its own.
        options.setdefault("key_prefix", uuid.uuid4().hex)
        super().__init__(f"redis-rl://localhost:{os.environ['PEER_one']}", timeout=60, connect_timeout=60, **options)


def followed(send):
    def sent(*arguments, **options):
        follow()
        return send(*arguments, **options)

    return sent


redis_rl.limits_storage.RedisRLStorage._sent = followed(redis_rl.limits_storage.RedisRLStorage._sent)


@pytest.fixture(autouse=True)
def empty(record_property):
    with redis.Redis(port=int(os.environ["PEER_one"])) as client:
        follow()
        client.flushall()
        client.config_resetstat()
        yield
        # As the server has counted.
        record_property("touches the storage", any(name.startswith("cmdstat_rl.") for name in client.info("commandstats")))


@pytest.fixture
def redis_connection():
    client = redis.Redis(port=int(os.environ["PEER_one"]))
    client.flushall()
    yield client
    client.close()


class Unused:
    """Some tests empty all stores, also those that they do not use."""

    def flush_all(self):
        pass


@pytest.fixture
def memcached_connection():
    return Unused()


@pytest.fixture
def mongo_connection():
    return Unused()


def pytest_collection_modifyitems(config, items):
    def is_other(item):
        uri = getattr(item, "callspec", None) and item.callspec.params.get("storage_uri", "")
        return uri and not uri.startswith("redis-rl") or item.name == "test_reset_unsupported"

    others = [item for item in items if is_other(item)]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)
