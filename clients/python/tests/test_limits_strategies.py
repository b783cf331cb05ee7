"""Tests the storage with the strategies of `limits`, and with flask-limiter and slowapi."""

import asyncio
import concurrent.futures
import contextlib
import decimal
import socketserver
import threading
import time

import fastapi
import flask
import flask_limiter
import httpx
import limits
import limits.aio.strategies
import limits.strategies
import pytest
import redis
import slowapi
import slowapi.errors
from limits.storage import storage_from_string

import redis_rl.limits_storage  # noqa: F401, registers its schemes
from conftest import PATIENCE, eventually, running_server
from helpers import skip_if_redis_py_can_t
from redis_rl import InvalidArgument, Unavailable

STRATEGIES = limits.strategies.STRATEGIES
ALL = pytest.mark.parametrize("strategy", STRATEGIES)
SLIDING = pytest.mark.parametrize("strategy", ["moving-window", "sliding-window-counter"])
# flask-limiter and slowapi round up to the next second.
ROUNDING_S = 1


@pytest.fixture
def uri(socket):
    return f"redis-rl+unix://{socket}"


def limiter(strategy, uri, **options):
    return STRATEGIES[strategy](storage_from_string(uri, **{"timeout": PATIENCE, **options}))


@ALL
def test_hit_test_stats_and_clear(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("5 per minute")
    assert limit.get_window_stats(item, "user", "7").remaining == 5
    assert limit.test(item, "user", "7", cost=5) and not limit.test(item, "user", "7", cost=6)
    for left in (4, 3, 2):
        assert limit.hit(item, "user", "7")
        assert limit.get_window_stats(item, "user", "7").remaining == left
    assert limit.test(item, "user", "7", cost=2) and not limit.test(item, "user", "7", cost=3)
    assert limit.hit(item, "user", "7", cost=2)
    assert not limit.test(item, "user", "7")
    assert not limit.hit(item, "user", "7")
    reset, remaining = limit.get_window_stats(item, "user", "7")
    assert remaining == 0 and 55 < reset - time.time() <= 60.01
    assert limit.hit(item, "user", "8"), "an identifier has a limit of its own"
    limit.clear(item, "user", "7")
    assert limit.get_window_stats(item, "user", "7").remaining == 5
    assert limit.hit(item, "user", "7", cost=5) and not limit.hit(item, "user", "8", cost=5)


@ALL
def test_a_cost_of_nothing_and_one_of_too_much(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("2 per minute")
    assert limit.hit(item, cost=0) and limit.get_window_stats(item).remaining == 2
    assert not limit.hit(item, cost=3)
    assert limit.hit(item, cost=2) != (strategy == "fixed-window"), "a fixed window of `limits` counts what it denies"


@ALL
def test_a_whole_cost_of_any_type(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("10 per minute")
    for left, cost in ((8, 2.0), (5, decimal.Decimal(3)), (4, True), (4, 0.0)):
        assert limit.hit(item, cost=cost) and limit.get_window_stats(item).remaining == left
        assert limit.test(item, cost=cost)
    assert not limit.hit(item, cost=5.0)

    async def main():
        limit = limits.aio.strategies.STRATEGIES[strategy](storage_from_string(f"async+{uri}", timeout=PATIENCE))
        assert await limit.hit(item, "user", cost=2.0)
        assert (await limit.get_window_stats(item, "user")).remaining == 8

    asyncio.run(main())


@ALL
@pytest.mark.parametrize("cost", [0.5, 2.5, float("nan"), float("inf")])
def test_a_cost_that_is_not_whole_is_an_error_and_takes_nothing(uri, strategy, cost):
    limit = limiter(strategy, uri)
    item = limits.parse("10 per minute")
    with pytest.raises(InvalidArgument, match="COST must be a whole number"):
        limit.hit(item, cost=cost)
    with pytest.raises(limits.errors.StorageError):
        limiter(strategy, uri, wrap_exceptions=True).hit(item, cost=cost)
    assert limit.get_window_stats(item).remaining == 10


@SLIDING
def test_what_is_denied_is_not_counted(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("5 per minute")
    assert limit.hit(item, cost=3) and not limit.hit(item, cost=3) and limit.hit(item, cost=2)


@ALL
def test_frees_up_when_it_says_so(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("2 per second")
    assert limit.hit(item) and limit.hit(item) and not limit.hit(item)
    reset = limit.get_window_stats(item).reset_time
    # Not more than a tenth of a second earlier, and not later, except for the counter's 0.1 %.
    while True:
        free = limit.test(item)
        if time.time() > reset - 0.1:
            break
        assert not free
        time.sleep(0.01)
    eventually(lambda: time.time() > reset + 0.002)
    assert limit.test(item) and limit.hit(item)


@SLIDING
def test_reset_is_when_the_oldest_hit_leaves(uri, strategy):
    limit = limiter(strategy, uri)
    item = limits.parse("2 per 2 second")

    def hit():
        """The moments between which it happened."""
        before = time.time()
        assert limit.hit(item)
        return before, time.time()

    def resets_after(moments):
        asked = time.time()
        stats = limit.get_window_stats(item)
        late = time.time() - asked
        assert moments[0] + 2 - 0.01 <= stats.reset_time <= moments[1] + 2.01 + late
        return stats

    first = hit()
    resets_after(first)
    eventually(lambda: time.time() > first[0] + 1)
    second = hit()
    resets_after(first)
    eventually(lambda: limit.test(item))
    assert resets_after(second).remaining == 1


def test_never_more_than_the_limit_around_a_boundary(uri):
    limit = limiter("sliding-window-counter", uri)
    item = limits.parse("10 per second")
    end, granted = time.monotonic() + 2.5, []
    while time.monotonic() < end:
        before = time.monotonic()
        if limit.hit(item):
            granted.append((before, time.monotonic()))
    assert len(granted) >= 20
    # Each grant comes more than a second after the tenth grant before it.
    for first, last in zip(granted, granted[10:]):
        assert last[1] - first[0] > 1


@ALL
def test_threads_never_get_more_than_the_limit(uri, strategy):
    item = limits.parse("100 per hour")
    limit = limiter(strategy, uri)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(lambda _: limit.hit(item, "all"), range(400))) == 100


@ALL
def test_asyncio(uri, strategy):
    async def main():
        limit = limits.aio.strategies.STRATEGIES[strategy](storage_from_string(f"async+{uri}", timeout=PATIENCE))
        item = limits.parse("5 per minute")
        assert sum(await asyncio.gather(*(limit.hit(item, "user") for _ in range(20)))) == 5
        assert not await limit.test(item, "user") and await limit.test(item, "other")
        reset, remaining = await limit.get_window_stats(item, "user")
        assert remaining == 0 and 55 < reset - time.time() <= 60.01
        await limit.clear(item, "user")
        assert await limit.hit(item, "user", cost=5) and await limit.hit(item, "user", cost=0)
        assert await limit.storage.check()
        assert await limit.storage.reset() == 1
        assert await limit.test(item, "user", cost=5)

    asyncio.run(main())


@pytest.mark.parametrize("protocol", [2, 3])
def test_strategies_side_by_side_and_reset(socket, uri, protocol):
    skip_if_redis_py_can_t(socket, protocol)
    other = redis.Redis(unix_socket_path=socket)
    other.set("unrelated", 1)
    item = limits.parse("1 per minute")

    def hit_all():
        for strategy in STRATEGIES:
            limit = limiter(strategy, uri, key_prefix="mine", protocol=protocol)
            assert limit.hit(item) and not limit.hit(item) and limit.get_window_stats(item).remaining == 0
        return limit

    limit = hit_all()
    assert all(0 < other.ttl(key) <= 61 for key in other.scan_iter("mine:*"))
    assert limit.storage.check()
    limit.clear(item)
    assert other.keys() == [b"unrelated"]
    assert hit_all().storage.reset() == 3
    assert other.keys() == [b"unrelated"]


def test_down(dead_socket):
    options = {"timeout": 0.3}
    item = limits.parse("1 per minute")
    limit = limiter("moving-window", f"redis-rl+unix://{dead_socket}", **options)
    assert not limit.storage.check()
    for wrapped, error in ((False, Unavailable), (True, limits.errors.StorageError)):
        with pytest.raises(error):
            limiter("moving-window", f"redis-rl+unix://{dead_socket}", wrap_exceptions=wrapped, **options).hit(item)


def check(uri):
    """Returns the result of `check`, and asserts that both storages return the same."""
    storage = storage_from_string(uri, timeout=PATIENCE, socket_timeout=0.5)
    healthy = storage.check()
    storage.storage.close()

    async def main():
        storage = storage_from_string(f"async+{uri}", timeout=PATIENCE, socket_timeout=0.5)
        try:
            return await storage.check()
        finally:
            await storage.storage.aclose()

    assert asyncio.run(main()) is healthy
    return healthy


def test_check_writes_nothing_and_denies_nothing(socket, uri):
    other = redis.Redis(unix_socket_path=socket)
    other.execute_command("RL.TOP", "RESET")
    before = other.info("rl")["rl_fixed_denied"]
    assert check(uri) is True
    assert other.keys() == [] and other.info("rl")["rl_fixed_denied"] == before and not other.execute_command("RL.TOP")


def test_check_without_a_server(dead_socket):
    assert check(f"redis-rl+unix://{dead_socket}") is False


def test_check_where_the_module_is_not_loaded():
    with running_server(module=None) as (_, socket):
        assert check(f"redis-rl+unix://{socket}") is False


def test_check_where_a_hit_would_be_refused():
    with running_server() as (_, socket):
        uri = f"redis-rl+unix://{socket}"
        other = redis.Redis(unix_socket_path=socket)
        assert check(uri) is True
        # The connection of `other` was opened before the password was set, and does not need it.
        for setting, value, healthy in (("maxmemory", 1, 0), ("min-replicas-to-write", 1, 0), ("requirepass", "secret", "")):
            other.config_set(setting, value)
            assert check(uri) is False, setting
            other.config_set(setting, healthy)
            assert check(uri) is True, setting
        other.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert check(uri) is False


@contextlib.contextmanager
def answering(answer):
    """A server that is not Redis: it sends `answer` for any bytes that it reads. With None it never answers."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            while self.request.recv(4096):
                if answer is not None:
                    self.request.sendall(answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


# Answers of HTTP, memcached and TLS; answers that redis-py accepts as a reply, or can't decode; and no answer.
OTHERS = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"ERROR\r\n",
    b"\x15\x03\x01\x00\x02\x02\x0a",
    b"+OK\r\n",
    b":1\r\n",
    b"$2\r\n\xff\xfe\r\n",
    None,
]


@pytest.mark.parametrize("answer", OTHERS)
def test_check_of_another_kind_of_server(answer):
    with answering(answer) as port:
        assert check(f"redis-rl://127.0.0.1:{port}") is False


def flask_client(uri, timeout=PATIENCE, **options):
    app = flask.Flask("test")
    flask_limiter.Limiter(
        lambda: flask.request.headers["X-User"],
        app=app,
        storage_uri=uri,
        storage_options={"timeout": timeout},
        headers_enabled=True,
        default_limits=["2 per minute"],
        **options,
    )
    app.route("/")(lambda: "hello")
    client = app.test_client()
    return lambda user: client.get("/", headers={"X-User": user})


def slowapi_client(uri, timeout=PATIENCE, **options):
    app = fastapi.FastAPI()
    app.state.limiter = slowapi.Limiter(
        lambda request: request.headers["X-User"],
        storage_uri=uri,
        storage_options={"timeout": timeout},
        headers_enabled=True,
        **options,
    )
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @app.state.limiter.limit("2 per minute")
    def hello(request: fastapi.Request, response: fastapi.Response):
        return "hello"

    async def get(user):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/", headers={"X-User": user})

    return lambda user: asyncio.run(get(user))


FRAMEWORKS = pytest.mark.parametrize("client", [flask_client, slowapi_client])


@ALL
@FRAMEWORKS
def test_over_http(uri, client, strategy):
    get = client(uri, strategy=strategy)
    start = time.time()
    for status, left in ((200, "1"), (200, "0"), (429, "0")):
        response = get("ada")
        assert (response.status_code, response.headers["X-RateLimit-Remaining"]) == (status, left)
        assert response.headers["X-RateLimit-Limit"] == "2"
    assert 55 <= int(response.headers["Retry-After"]) <= 60 + ROUNDING_S
    assert 55 <= float(response.headers["X-RateLimit-Reset"]) - start <= 61 + ROUNDING_S
    assert get("bob").status_code == 200


@FRAMEWORKS
def test_http_when_down(dead_socket, client):
    uri = f"redis-rl+unix://{dead_socket}"
    assert client(uri, 0.2)("ada").status_code == 500
    get = client(uri, 0.2, in_memory_fallback_enabled=True)
    assert [get("ada").status_code for _ in range(3)] == [200, 200, 429]
    # slowapi 0.1.10 answers 500 even so, because it reads a limit that it has not stored.
    get = client(uri, 0.2, swallow_errors=True)
    assert [get("ada").status_code for _ in range(3)] == [200 if client is flask_client else 500] * 3
