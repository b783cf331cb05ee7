"""Pauses: what the process does about its wallets and its repeated denials, and workers that share a third party. The cases of
clients/behaviour.json say what the calls return."""

import asyncio
import contextlib
import http.server
import subprocess
import sys
import threading

import pytest
import redis

from conftest import eventually, inspect, named
from helpers import CLUSTERS, KINDS, Both, used, value
from redis_rl import Fixed, Unavailable


async def until(condition):
    await asyncio.to_thread(eventually, condition)


@KINDS
def test_a_pause_stops_the_wallets_of_this_process(kind, socket, client):
    async def test(limits):
        limit, again = limits.limit("api", Fixed("1000/h")), limits.limit("api", Fixed("1000/h"))
        wallets = [limits.wallet(each, batch=100, idle=600) for each in (limit, again)]
        for key in ("a", "b"):
            assert [(await value(wallet.take(key))).granted for wallet in wallets] == [1, 1]
        assert 50 <= await value(limit.pause("a", 60)) <= 60
        # What they had is given back.
        await until(lambda: (used(client, "api:a"), inspect(client, "api:a")["ids"]) == (2, 0))
        assert used(client, "api:b") == 200
        for wallet in wallets:
            denied = await value(wallet.take("a"))
            assert (denied.granted, denied.remaining, denied.source) == (0, 0, "wallet") and denied.wait_ms > 30_000
            # Another key is not paused.
            assert await value(wallet.take("b"))
        await value(limit.resume("a"))
        assert [(await value(wallet.take("a"))).granted for wallet in wallets] == [1, 1]
        assert used(client, "api:a") == 202
        # One that another process has set is found by the next fetch.
        client.execute_command("RL.PAUSE", "api:a", "60s")
        assert [(await value(wallet.take("a", cost))).granted for wallet in wallets for cost in (99, 1)] == [99, 0, 99, 0]

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_pause_stops_what_is_being_fetched(kind, socket, proxy, client):
    """The server has granted the units before it knew of the pause, and its reply comes later."""

    async def test(limits):
        limit = limits.limit("api", Fixed("1000/h"))
        wallet = limits.wallet(limit, batch=100, idle=600)
        proxy.delay_reply("UPTO")
        call = asyncio.create_task(asyncio.to_thread(wallet.take, "a") if kind is redis.Redis else wallet.take("a"))
        await until(lambda: used(client, "api:a") == 100)
        assert await value(limit.pause("a", 60)) > 0
        proxy.go_on.set()
        assert not await call and not await value(wallet.take("a"))
        await until(lambda: used(client, "api:a") == 0)

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_a_wallet_stops_before_the_server_knows(kind, proxy, client):
    async def test(limits):
        limit = limits.limit("api", Fixed("1000/h"))
        wallet = limits.wallet(limit, batch=100, idle=600)
        assert await value(wallet.take("a"))
        proxy.delay("RL.PAUSE")
        call = asyncio.create_task(asyncio.to_thread(limit.pause, "a", 60) if kind is redis.Redis else limit.pause("a", 60))
        await until(lambda: any(b"RL.PAUSE" in data for data in proxy.seen))
        # It asks the server, which settles what was fetched before.
        assert await value(wallet.take("a")) and used(client, "api:a") == 101
        proxy.go_on.set()
        assert await call > 0 and not await value(wallet.take("a"))
        await until(lambda: used(client, "api:a") == 2)

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@CLUSTERS
def test_a_pause_stops_the_wallets_of_a_cluster(kind, cluster):
    async def test(limits):
        limit = limits.limit("paused", Fixed("1000/h"))
        wallet = limits.wallet(limit, batch=100, idle=600)
        for key in "abc":
            assert await value(wallet.take(key))
            assert await value(limit.pause(key, 60)) > 0
            assert not await value(wallet.take(key))
            await value(limit.resume(key))
            assert await value(wallet.take(key))

    Both(kind, host="127.0.0.1", port=cluster.ports[0]).run(test)


@KINDS
def test_a_pause_without_a_reply(kind, proxy, client):
    """Whether it is in force is unknown, so the wallet has stopped."""

    async def test(limits):
        limit = limits.limit("api", Fixed("1000/h"))
        wallet = limits.wallet(limit, batch=100, idle=600)
        assert await value(wallet.take("a"))
        proxy.lose("reply", "RL.PAUSE", 100)
        with pytest.raises(Unavailable):
            await value(limit.pause("a", 60))
        assert inspect(client, "api:a")["paused_ms"] > 0
        assert not await value(wallet.take("a"))
        await until(lambda: used(client, "api:a") == 1)

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=1.5, connect_timeout=0.5)


@KINDS
def test_a_denial_is_not_repeated_after_a_pause_or_its_end(kind, socket):
    async def test(limits):
        limit = limits.limit("api", Fixed("10/h"))

        async def sources():
            return [(await value(limit.take("a"))).source for _ in range(2)]

        await value(limit.take("a", 10))
        assert await sources() == ["server", "repeated"]
        # A call of another cost has another wait.
        beyond = await value(limit.take("a", 11))
        assert beyond.source == "server" and beyond.wait is None
        await value(limit.pause("a", "2h"))
        denied = await value(limit.take("a"))
        assert denied.source == "server" and denied.wait > 3600
        await value(limit.resume("a"))
        await value(limit.refund("a", 10))
        await value(limit.pause("a", 60))
        assert await sources() == ["server", "repeated"]
        await value(limit.resume("a"))
        assert await value(limit.take("a"))

    Both(kind, unix_socket_path=socket).run(test, repeat_denials=1)


WORKERS, CALLS, PAUSE_S = 8, 6, 3
WORKER = """
import sys, urllib.error, urllib.request, redis
from helpers import limits_of
from redis_rl import Gcra
socket, partner, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
    limit = limits.limit("partner", Gcra("40/s", burst=1))
    print("ready", flush=True)
    input()
    for _ in range(calls):
        assert limit.wait("api", 600)
        try:
            urllib.request.urlopen(partner, timeout=60).close()
        except urllib.error.HTTPError as response:
            assert limit.observe("api", response) > 0
"""


@contextlib.contextmanager
def fake_partner(client):
    """Yields its address, and for each call the time of the server at which it came."""
    log, lock = [], threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            with lock:
                log.append(now_of(client.time()))
                stop = len(log) == 2 * WORKERS
            self.send_response(429 if stop else 200)
            if stop:
                self.send_header("Retry-After", str(PAUSE_S))
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", log
        finally:
            server.shutdown()
            thread.join()


def now_of(time):
    return time[0] * 1000 + time[1] / 1000


def paused(client):
    """When the pause of the partner's key ends, in ms of the server's time; None without one."""
    with client.pipeline(transaction=True) as both:
        time, facts = both.time().execute_command("RL.INSPECT", "partner:api").execute()
    rest = facts and named(facts)["paused_ms"]
    return now_of(time) + rest if rest else None


def test_eight_workers_stop_when_the_third_party_says_so(socket, client):
    with fake_partner(client) as (address, log), contextlib.ExitStack() as stack:
        command = [sys.executable, "-B", "-c", WORKER, socket, address, str(CALLS)]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": {"PYTHONPATH": ":".join(sys.path)}}
        workers = [stack.enter_context(subprocess.Popen(command, **options)) for _ in range(WORKERS)]
        for worker in workers:
            stack.callback(worker.kill)
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * WORKERS
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        end = eventually(lambda: paused(client))
        for worker in workers:
            assert worker.wait(timeout=120) == 0
    # The rest of a pause is rounded up to a ms. Each of the other workers may have had one call under way when it began.
    begin, end = end - PAUSE_S * 1000, end - 1
    during = [time for time in log if begin <= time < end]
    assert len(during) < WORKERS
    # It has begun after the answer, and all others came in their turn, after its end.
    assert log[2 * WORKERS - 1] < begin + 1
    assert len(log) == WORKERS * CALLS and sum(time >= end for time in log) >= WORKERS
