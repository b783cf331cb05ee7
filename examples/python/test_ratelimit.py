import asyncio
import inspect
import signal
import threading

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import ratelimit
from conftest import eventually, running_server
from ratelimit import Limit, RateLimited


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


def waiting(client):
    return client.info("clients")["blocked_clients"]


def test_decorator_raises_when_denied(client):
    limit = Limit(client, "GCRA", 2, "1m")

    @limit("user:{user_id}")
    def show(user_id, page=1):
        """Shows."""
        return user_id, page

    assert show(7) == (7, 1)
    assert show(user_id=7, page=2) == (7, 2)
    with pytest.raises(RateLimited) as denied:
        show(7, 3)
    assert 20 < denied.value.retry_after <= 30
    assert (denied.value.key, denied.value.reply.limit, denied.value.reply.remaining) == ("user:7", 2, 0)
    assert show(8) == (8, 1), "a key is a limit of its own"
    paged = limit("{{pages}}:{page}")(show.__wrapped__)
    assert (paged(7), paged(8), paged(9, 2)) == ((7, 1), (8, 1), (9, 2)), "a default is an argument, too"
    with pytest.raises(RateLimited, match="^{pages}:1: "):
        paged(10)
    assert (show.__name__, show.__doc__) == ("show", "Shows.")
    assert str(inspect.signature(show)) == "(user_id, page=1)"


def test_context_manager_returns_the_remaining_units(client):
    limit = Limit(client, "BUCKET", 10, "1h", "CAPACITY", 20)
    with limit("{export}", cost=15) as reply:
        assert (reply.granted, reply.limit, reply.remaining) == (15, 20, 5)
    with pytest.raises(RateLimited), limit("{export}", cost=6):
        pytest.fail("ran without a grant")
    with pytest.raises(RateLimited) as never, limit("{export}", cost=21):
        pytest.fail("ran without a grant")
    assert never.value.retry_after is None
    with pytest.raises(KeyError), limit("{export}"):
        raise KeyError("what the block raises goes through")


def test_asyncio(socket):
    async def main():
        async with redis.asyncio.Redis(unix_socket_path=socket) as client:
            limit = Limit(client, "SLIDE", 3, "1m")

            @limit("user:{user_id}", cost=2)
            async def show(user_id):
                return user_id

            assert inspect.iscoroutinefunction(show)
            assert await show(7) == 7
            with pytest.raises(RateLimited) as denied:
                await show(7)
            assert 50 < denied.value.retry_after <= 60.1
            async with limit("user:7") as reply:
                assert reply.remaining == 0

    asyncio.run(main())


def test_wait_is_longer_than_the_clients_own_timeout(socket):
    client = redis.Redis(unix_socket_path=socket, socket_timeout=0.1)
    calls = []

    @Limit(client, "GCRA", 5, 1, "BURST", 1)("partner-api", wait=10)
    def call():
        calls.append(1)

    server_s = lambda: sum(part / unit for part, unit in zip(client.time(), (1, 1_000_000)))
    start = server_s()
    workers = [threading.Thread(target=call) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert len(calls) == 6
    # Five gaps of 200 ms.
    assert server_s() - start >= 1
    slow = Limit(client, "FIXED", 1, "1d")
    with slow("slow"):
        pass
    with pytest.raises(RateLimited) as denied, slow("slow", wait=0.2):
        pytest.fail("ran without a grant")
    assert denied.value.retry_after > 86_000


def test_asyncio_waits_without_blocking_the_loop_and_leaves_when_cancelled(socket):
    async def main():
        client = redis.asyncio.Redis(unix_socket_path=socket, socket_timeout=0.1)
        limit = Limit(client, "FIXED", 1, "1h")

        @limit("partner-api", wait=7200)
        async def call():
            return "called"

        assert await call() == "called"
        waiter, leaver = asyncio.create_task(call()), asyncio.create_task(call())

        async def in_line(count):
            async with asyncio.timeout(20):
                while (await client.info("clients"))["blocked_clients"] != count:
                    await asyncio.sleep(0.005)

        await in_line(2)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        await in_line(1)
        await client.delete("partner-api")
        assert await waiter == "called"
        # The connection of the cancelled call, whose reply is outstanding, is not reused.
        assert await asyncio.gather(*(client.echo(str(n)) for n in range(5))) == [b"0", b"1", b"2", b"3", b"4"]
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("wait", [None, 30])
def test_down(dead_socket, caplog, wait):
    client = redis.Redis(unix_socket_path=dead_socket, retry=None)
    ran = []
    with pytest.raises(redis.ConnectionError):
        Limit(client, "GCRA", 1, 1)("key", wait=wait)(ran.append)(1)
    assert ran == []
    limit = Limit(client, "GCRA", 1, 1, on_down="open")
    with limit("key", wait=wait) as reply:
        assert reply is None
    limit("key", wait=wait)(lambda: ran.append(2))()
    assert ran == [2]
    assert "key goes on uncounted: " in caplog.text

    async def main():
        client = redis.asyncio.Redis(unix_socket_path=dead_socket, retry=AsyncRetry(NoBackoff(), 0))
        with pytest.raises(redis.ConnectionError):
            async with Limit(client, "GCRA", 1, 1)("key", wait=wait):
                pytest.fail("ran without a grant")
        async with Limit(client, "GCRA", 1, 1, on_down="open")("key", wait=wait) as reply:
            assert reply is None

    asyncio.run(main())


def test_a_server_that_hangs_is_down_and_charges_once(monkeypatch):
    monkeypatch.setattr(ratelimit, "MARGIN_S", 0.1)
    with running_server() as (process, socket):
        client = redis.Redis(unix_socket_path=socket, socket_timeout=0.2, retry=Retry(NoBackoff(), 2))
        limit = Limit(client, "FIXED", 10, "1d")
        with limit("key"):
            pass
        process.send_signal(signal.SIGSTOP)
        try:
            for wait in (None, 0.1):
                with pytest.raises(redis.TimeoutError), limit("key", wait=wait):
                    pytest.fail("ran without a grant")
        finally:
            process.send_signal(signal.SIGCONT)
        eventually(lambda: waiting(client) == 0)
        with limit("key") as reply:
            assert reply.remaining >= 6, "at most one charge for each call"


def test_a_wrong_use_is_an_error(client):
    with pytest.raises(ValueError):
        Limit(client, "GCRA", 1, 1, on_down="maybe")
    with pytest.raises(TypeError):

        @Limit(client, "GCRA", 1, 1)("key")
        async def call():
            pass

    with pytest.raises(redis.ResponseError, match="period"), Limit(client, "GCRA", 1, "1 minute")("key"):
        pytest.fail("ran without a grant")


@pytest.mark.parametrize("on_down", ["closed", "open"])
def test_a_wrong_argument_is_not_taken_for_a_server_that_is_down(client, on_down):
    limit = Limit(client, "FIXED", 5, 60, on_down=on_down)
    for cost in (0, -1, 0.5, 2 * 10**12, None):
        with pytest.raises(ValueError, match="cost"):
            limit("key", cost=cost)
    for wait in (0, -1, 86_401, float("nan")):
        with pytest.raises(ValueError, match="wait"):
            limit("key", wait=wait)
    with pytest.raises(redis.DataError), limit(None):
        pytest.fail("ran without a grant")
    assert client.keys() == []


def test_a_wait_with_any_decimals(client):
    limit = Limit(client, "GCRA", 10, 1, "BURST", 1)
    for wait in (10 / 3, 0.1 + 0.2, 1e-7):
        with limit(f"key:{wait}", wait=wait) as reply:
            assert reply.granted == 1
