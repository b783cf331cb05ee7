"""A server that is down: the calls that reach it are counted, and not the time that they take."""

import asyncio
import contextlib
import fractions
import json
import logging
import math
import os
import pathlib
import signal
import socket as socket_module
import subprocess
import sys
import threading
import time

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel

from conftest import PATIENCE, eventually, running_sentinel, running_server
from helpers import KINDS, Both, block, limits_of, used, value
from redis_rl import AsyncLimits, Fixed, Gcra, Lease, RateLimited, Unavailable
from redis_rl._down import FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_KEYS, Breaker, LocalLimiter

HOUR = Fixed("1000/h")


@contextlib.contextmanager
def counting_server():
    """A server that accepts connections and never answers. Yields its address, and the connections that it has got."""
    with socket_module.create_server(("127.0.0.1", 0)) as listener:
        connections = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1], connections
        finally:
            listener.shutdown(socket_module.SHUT_RDWR)
            thread.join()
            for each in connections:
                each.close()


@KINDS
def test_a_server_that_hangs_is_asked_by_one_call_at_a_time(kind):
    """Each call that asks it makes a connection. All others are decided at once, also those that wait or have an id."""
    with counting_server() as (port, connections):

        async def test(limits):
            limit, jobs = limits.limit("api", HOUR), limits.limit("jobs", Lease(1, 30))
            assert (await value(limit.take("a"))).source == "down"
            assert len(connections) == 1
            breaker = next(iter(limits._calls._nodes.values())).breaker
            # No probe is due.
            breaker._next = time.monotonic() + 3600
            for _ in range(40):
                assert (await value(limit.take("a"))).source == "down"
                assert (await value(limit.take("a", id="one"))).source == "down"
                assert (await value(limit.wait("a", 3600))).source == "down"
                assert (await value(limits.all([(limit, "a", 1)], wait=3600))).source == "down"
                async with block(jobs.hold("a", wait=3600)) as held, block(limit.charge("a", 5, wait=3600)) as charge:
                    held.check()
                    charge.used = 7
            assert len(connections) == 1 and limits.let_through == 1 + 40 * 6
            # Of many calls at the same time, one is the probe.
            breaker._next = 0.0
            if kind is redis.Redis:
                take = lambda: asyncio.to_thread(limit.take, "a")
            else:
                take = lambda: limit.take("a")
            await asyncio.gather(*(take() for _ in range(20)))
            assert len(connections) == 2

        Both(kind, host="127.0.0.1", port=port).run(test, on_down="open", timeout=0.3, connect_timeout=0.3)


def test_a_silent_sentinel_does_not_stop_all_calls():
    """With asyncio. With threads, redis-py itself goes on to the next Sentinel, because nothing cancels it."""

    async def test(addresses):
        sentinels = AsyncSentinel(addresses)
        client = sentinels.master_for("limits")
        async with contextlib.AsyncExitStack() as stack:
            for each in [*sentinels.sentinels, client, limits := AsyncLimits(client, timeout=PATIENCE, connect_timeout=2)]:
                stack.push_async_callback(each.aclose)
            for _ in range(200):
                with contextlib.suppress(Unavailable):
                    return (await limits.limit("api", HOUR).take("a")).granted
                await asyncio.sleep(0.05)

    with counting_server() as (silent, _), running_sentinel() as watched:
        assert asyncio.run(test([("127.0.0.1", silent), ("127.0.0.1", watched.sentinel_port)])) == 1


@KINDS
@pytest.mark.parametrize("on_down", ["open", "closed"])
def test_the_first_success_ends_an_outage(kind, on_down):
    with running_server() as (process, socket), redis.Redis(unix_socket_path=socket) as client:

        async def asked(limit):
            try:
                return (await value(limit.take("a"))).source
            except Unavailable:
                return "down"

        async def test(limits):
            limit = limits.limit("api", HOUR)
            assert await asked(limit) == "server"
            process.send_signal(signal.SIGSTOP)
            try:
                assert [await asked(limit) for _ in range(50)] == ["down"] * 50
            finally:
                process.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + 60
            while await asked(limit) == "down":
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            assert [await asked(limit) for _ in range(10)] == ["server"] * 10

        Both(kind, unix_socket_path=socket).run(test, on_down=on_down, timeout=0.5, connect_timeout=0.5)
        assert used(client, "api:a") <= 14


@KINDS
def test_error_replies_do_not_count_as_down(kind, socket, client):
    async def test(limits):
        limit = limits.limit("api", HOUR)
        client.replicaof("127.0.0.1", 1)
        try:
            for _ in range(5):
                assert (await value(limit.take("a"))).source == "down"
            assert not limits._calls.is_down
        finally:
            client.replicaof("NO", "ONE")
        assert (await value(limit.take("a"))).source == "server"

    Both(kind, unix_socket_path=socket).run(test, on_down="open")


@KINDS
def test_a_call_that_waits_is_not_late(kind, socket, client):
    """Its wait is longer than all time-outs, and nothing counts as down meanwhile."""
    client.execute_command("RL.LEASE", "jobs:a", 1, 600, "ID", "other")

    async def test(limits):
        with pytest.raises(RateLimited):
            async with block(limits.limit("jobs", Lease(1, 60)).hold("a", wait=3)):
                pytest.fail("ran without a lease")
        assert not limits._calls.is_down
        # A probe that waits asks first whether the server is there.
        breaker = next(iter(limits._calls._nodes.values())).breaker
        breaker.failed(redis.ConnectionError(), False)
        breaker._next = 0.0
        waits = limits.limit("api", Gcra("1/s", burst=1))
        assert (await value(waits.wait("a", 30))).source == "server" and not breaker.cause

    Both(kind, unix_socket_path=socket).run(test, timeout=2, connect_timeout=2)


@KINDS
def test_settlements_are_tried_while_the_server_counts_as_down(kind, socket, client):
    async def test(limits):
        limit = limits.limit("tokens", HOUR)
        async with block(limit.charge("a", 100)) as charge:
            breaker = next(iter(limits._calls._nodes.values())).breaker
            breaker.failed(redis.ConnectionError(), False)
            breaker._next = time.monotonic() + 3600
            charge.used = 30
        assert used(client, "tokens:a") == 30 and not breaker.cause

    Both(kind, unix_socket_path=socket).run(test)


def test_the_pauses_of_probes(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    breaker, pauses, error = Breaker(), [], redis.ConnectionError()
    assert not breaker.refuses(1)
    breaker.failed(error, False)
    for _ in range(9):
        pauses.append(breaker._next - now[0])
        assert breaker.refuses(1) is error
        now[0] = breaker._next
        # One probe, and nobody else until it has ended.
        assert not breaker.refuses(1) and breaker.refuses(1) is error
        # Calls that began before the outage change nothing.
        breaker.failed(error, False)
        assert breaker.refuses(1) is error
        breaker.failed(error, True)
    expected = [min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(9)]
    assert all(0.74 * right < pause < 1.01 * right for pause, right in zip(pauses, expected))
    assert expected[-1] == LONGEST_PAUSE_S == 5 and len({round(pause / right, 6) for pause, right in zip(pauses, expected)}) > 1
    now[0] = breaker._next
    assert not breaker.refuses(1)
    # A probe that its program has ended leaves its turn to the next call.
    breaker.ended()
    assert not breaker.refuses(1)
    breaker.succeeded()
    assert not breaker.refuses(1) and not breaker.refuses(1)


# A limiter in the process


def test_a_local_limiter_is_exact_and_bounded(monkeypatch):
    """The same decisions as with rational numbers, at moments around those at which units come back."""
    now = [10**15]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    limiter, full, unit = LocalLimiter(Gcra("3/s", burst=2)), fractions.Fraction(0), fractions.Fraction(1_000_000, 3)
    take = lambda key=b"a", cost=1: limiter.decide([("api", HOUR, key, cost)])[0]
    for step in range(3000):
        us = now[0] // 1000
        due = max(full, us) + unit - us - 2 * unit
        decision = take()
        assert decision.granted == (due <= 0) and decision.wait_ms == max(0, math.ceil(due / 1000))
        full = max(full, us) + unit if decision else full
        # To the microsecond before the next unit, to that of the unit, or somewhere.
        now[0] += (max(0, math.ceil(due)) - 1 if step % 3 == 0 else 1 if step % 3 == 1 else step * 97) * 1000
    for number in range(MOST_KEYS):
        assert take(str(number).encode())
    assert len(limiter._ends) == MOST_KEYS and b"a" not in limiter._ends
    # A key is in use although all its calls are denied.
    assert not take(b"0", 3) and not limiter.decide([("api", HOUR, b"1", 3), ("api", HOUR, b"new", 1)])[0]
    assert take(b"x1") and take(b"x2")
    assert b"0" in limiter._ends and b"1" in limiter._ends and b"2" not in limiter._ends and b"3" not in limiter._ends
    # All rules take their units, or none.
    rules = [("api", HOUR, b"x", 1), ("api", HOUR, b"y", 2), ("jobs", Lease(1, 30), b"z", 1)]
    assert all(limiter.decide(rules))
    assert [bool(each) for each in limiter.decide(rules)] == [True, False, True]
    assert take(b"x") and not take(b"y")
    assert not LocalLimiter(Gcra("0/s")).decide([("api", HOUR, b"a", 1)])[0]


@KINDS
def test_a_local_limiter_decides_all_and_leases(kind, dead_socket):
    async def test(limits):
        one, two, jobs = limits.limit("one", HOUR), limits.limit("two", HOUR), limits.limit("jobs", Lease(1, 30))
        rules = [(one, "a", 1), (two, "a", 2), (jobs, "a")]
        first, second = await value(limits.all(rules)), await value(limits.all(rules))
        assert first and first.source == "down" and first.headers() == {}
        assert not second and [row.granted for row in second.decisions] == [1, 0, 1] and 0 < second.wait <= 7200
        with pytest.raises(RateLimited):
            async with block(limits.admit(rules)):
                pytest.fail("ran without a decision")
        async with block(jobs.hold("a")), block(jobs.hold("a")):
            pass
        with pytest.raises(RateLimited):
            async with block(two.charge("a", 1)):
                pytest.fail("ran without a decision")
        assert not await value(two.reserve("a", 60)) and not await value(two.wait("a", 60))
        assert await value(two.force("a", 5)) and await value(two.refund("a", 5))
        assert limits.let_through == 5

    Both(kind, unix_socket_path=dead_socket).run(test, on_down=Gcra("2/h"), timeout=0.3, connect_timeout=0.3)


@KINDS
@pytest.mark.parametrize("on_down", ["open", "closed"])
def test_it_is_logged_once_a_second(kind, on_down, dead_socket, caplog):
    async def test(limits):
        limit = limits.limit("api", HOUR)
        begin = time.monotonic()
        with caplog.at_level(logging.ERROR, logger="redis_rl"):
            for _ in range(50):
                with contextlib.suppress(Unavailable):
                    assert (await value(limit.take("a"))).source == "down"
        assert 1 <= len(caplog.records) <= 1 + (time.monotonic() - begin)
        assert "does the server run" in caplog.text and limits.let_through == (50 if on_down == "open" else 0)

    Both(kind, unix_socket_path=dead_socket).run(test, on_down=on_down)


# Event loops


def test_a_second_event_loop(socket, client):
    """What belongs to a closed loop is dropped, and the call works; units that were fetched are still there."""
    limits = limits_of(redis.asyncio.Redis(unix_socket_path=socket))
    limit = limits.limit("api", HOUR)
    wallet = limits.wallet(limit, batch=10, idle=600)

    async def calls():
        assert await limit.take("a")
        assert await wallet.take("b")
        async with limit.charge("a", 5) as charge:
            charge.used = 2

    for _ in range(20):
        asyncio.run(calls())
    assert len(limits._of_loop._values) <= 2 and used(client, "api:a") == 60

    async def fetches():
        # Its loop ends while it fetches.
        client.execute_command("CLIENT PAUSE", 300)
        task = asyncio.ensure_future(wallet.take("c"))
        await asyncio.sleep(0.05)
        return task

    task = asyncio.new_event_loop()
    pending = task.run_until_complete(fetches())
    task.close()
    client.ping()

    async def last():
        assert await asyncio.wait_for(wallet.take("c"), 60)
        await limits.aclose()

    asyncio.run(last())
    assert used(client, "api:b") == 20 and not pending.done()


def test_two_event_loops_at_the_same_time(socket, client):
    limits = limits_of(redis.asyncio.Redis(unix_socket_path=socket))
    limit = limits.limit("api", HOUR)
    wallet = limits.wallet(limit, batch=7, idle=600)
    failures = []

    async def main():
        for _ in range(50):
            assert await limit.take("a") and await wallet.take("b")

    def run():
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(limits.aclose())
    assert not failures and (used(client, "api:a"), used(client, "api:b")) == (200, 200)


def test_the_program_that_measures_an_outage():
    program = pathlib.Path(__file__).resolve().parents[1] / "outage.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-B", program, "--seconds", "0.5", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["web"], row["server"]) for row in rows] == [
        (web, server) for web in ("gunicorn", "uvicorn") for server in ("up", "stopped", "refusing", "gone")
    ]
    assert all(row["served"] > 0 and row["failed"] == 0 for row in rows), rows
    assert all((row["let_through"] > 0) is (row["server"] != "up") for row in rows), rows
