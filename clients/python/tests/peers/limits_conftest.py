"""run.py appends this to the conftest.py of `limits`, whose fixtures start servers with docker. These are clients of servers that
run.py has started."""

import os

import pytest
import redis
import redis.sentinel

import redis_rl.limits_storage  # noqa: F401: registers its schemes

PORT = {name: int(os.environ[f"PEER_{name}"]) for name in ("one", "cluster", "auth", "tls", "sentinel", "sentinel-auth")}
TLS = {
    "ssl": True,
    "ssl_cert_reqs": "none",
    "ssl_check_hostname": False,
    "ssl_keyfile": "./tests/tls/client.key",
    "ssl_certfile": "./tests/tls/client.crt",
    "ssl_ca_certs": "./tests/tls/ca.crt",
}


def primary(name, **login):
    sentinel = redis.sentinel.Sentinel([("localhost", PORT[name])], sentinel_kwargs=login, **login)
    return sentinel.master_for("mymaster")


CLIENTS = {
    "redis_basic": lambda: redis.Redis(port=PORT["one"]),
    "redis_uds": lambda: redis.Redis(unix_socket_path=os.environ["PEER_socket"]),
    "redis_cluster": lambda: redis.RedisCluster("localhost", PORT["cluster"]),
    "redis_auth_cluster": lambda: redis.RedisCluster("localhost", PORT["auth"], password="sekret"),
    "redis_ssl_cluster": lambda: redis.RedisCluster("localhost", PORT["tls"], **TLS),
    "redis_sentinel": lambda: primary("sentinel"),
    "redis_sentinel_auth": lambda: primary("sentinel-auth", password="sekret"),
}


def fixture_of(name):
    @pytest.fixture(name=name)
    def client():
        client = CLIENTS[name]()
        client.flushall()
        yield client
        client.close()

    return client


for each in CLIENTS:
    globals()[each] = fixture_of(each)


# Other storages are not tested. Their fixtures must only exist.
def unused(name):
    @pytest.fixture(name=name)
    def other():
        raise AssertionError(f"a test of {name} ran")

    return other


for each in ("memcached", "memcached_cluster", "memcached_uds", "memcached_sasl", "mongodb", "valkey_basic", "valkey_cluster"):
    globals()[each] = unused(each)
