"""run.py appends this to the conftest.py of flask-limiter, whose fixtures start servers with docker. Here, Redis is a server that
run.py has started. Tests of other storages are left out."""

import os

import pytest
import redis

import redis_rl.limits_storage  # noqa: F401: registers its schemes


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
