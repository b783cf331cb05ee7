"""Several limits around a block of work: what is charged, settled and released is read on the server."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest
import redis
import redis.asyncio

from conftest import PATIENCE, eventually, inspect, running_server
from helpers import lease_class, lost, block, Both, CLUSTERS, held, KINDS, limits_of, refused, used, waiting
from redis_rl import (
    Bucket,
    Unavailable,
    Fixed,
    Gcra,
    InvalidCost,
    InvalidId,
    InvalidKey,
    InvalidWait,
    Lease,
    LeaseLost,
    RateLimited,
)

# Longer than the period: a shorter wait is denied at once.
LONG_S = 7200
ALL = "{gateway}all:tokens"
HOLDS = "{gateway}running:acme"
REQUESTS = "{gateway}requests:acme"
TOKENS = "{gateway}tokens:acme"


def rules(limits, tenant="acme", ttl=3600, all_tokens=2000):
    return [
        (limits.limit("{gateway}running", Lease(2, ttl)), tenant),
        (limits.limit("{gateway}requests", Fixed("100/h")), tenant, 1),
        (limits.limit("{gateway}tokens", Fixed("1000/h")), tenant),
        (limits.limit("{gateway}all", Fixed(f"{all_tokens}/h")), "tokens"),
    ]


def charged(client, tenant="acme"):
    """The calls that run, the requests, the tenant's tokens, and those of all tenants."""
    names = [f"{{gateway}}{name}:{tenant}" for name in ("requests", "tokens")]
    return held(client, f"{{gateway}}running:{tenant}"), *(used(client, key) for key in (*names, ALL))


def ids(client):
    return sum((inspect(client, key) or {}).get("ids", 0) for key in (REQUESTS, TOKENS, ALL))


async def until(condition):
    await asyncio.to_thread(eventually, condition)


class Own(Exception):
    pass


@KINDS
def test_tokens_are_settled_and_the_lease_is_released(kind, socket, client):
    async def test(limits):
        total = 0
        for n, (spent, left) in enumerate([(120, 120), (450, 450), (0, 0), (..., 300)], 1):
            async with block(limits.admit(rules(limits), 300)) as call:
                assert charged(client) == (1, n, total + 300, total + 300)
                assert call.decision and len(call.decision.decisions) == 4 and call.decision.id == call.id
                if spent is not ...:
                    call.used = spent
            total += left
            assert charged(client) == (0, n, total, total) and ids(client) == 0
        with pytest.raises(Own):
            async with block(limits.admit(rules(limits), 100)) as call:
                call.used = 30
                raise Own
        assert charged(client) == (0, 5, 900, 900)
        for n, unset in enumerate((False, True), 6):
            with pytest.raises(Own):
                async with block(limits.admit(rules(limits), 60)) as call:
                    if unset:
                        call.used = 30
                        call.used = None
                    raise Own
            # What has a cost stays.
            assert charged(client) == (0, n, 900, 900) and ids(client) == 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_only_leases_and_only_rates(kind, socket, client):
    async def test(limits):
        jobs, day = limits.limit("jobs", Lease(3, 60)), limits.limit("day", Bucket("100/h", capacity=500))
        async with block(limits.admit([(jobs, "a", 2)])):
            assert held(client, "jobs:a") == 2
        async with block(limits.admit([(day, "a")], estimate=300)) as call:
            call.used = 120
        async with block(limits.admit([(day, "b", 7), (jobs, "a")])) as call:
            # Nothing is charged an estimate.
            call.used = 120
        assert (held(client, "jobs:a"), used(client, "day:a"), used(client, "day:b")) == (0, 120, 7)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_denied_call_charges_nothing_and_names_the_limits(kind, socket, client):
    async def test(limits):
        async with block(limits.admit(rules(limits), 700)):
            for wait in (None, 0, 0.2):
                with pytest.raises(RateLimited, match="tokens: the limit is reached; retry in ") as denied:
                    async with block(limits.admit(rules(limits), 301, wait)):
                        pytest.fail("ran without a charge")
                error = denied.value
                assert error.decision.name == "{gateway}tokens" and 3_500 < error.retry_after <= 3600
                assert len(error.decisions) == 4 and error.headers()["RateLimit"].count(";r=") == 4
                assert int(error.headers()["Retry-After"]) > 3_500 and error.headers()["X-RateLimit-Limit"] == "1000"
                assert charged(client) == (1, 1, 700, 700)
            with pytest.raises(RateLimited, match="retry never") as never:
                async with block(limits.admit(rules(limits), 2001, LONG_S)):
                    pytest.fail("ran without a charge")
            assert str(never.value).startswith("{gateway}tokens, {gateway}all: ") and never.value.retry_after is None
            assert charged(client) == (1, 1, 700, 700) and ids(client) == 3

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_wrong_arguments_are_refused_before_a_call(kind, socket, client):
    calls = client.info("commandstats").get("cmdstat_rl.all", {"calls": 0})["calls"]

    async def test(limits):
        all_rules = rules(limits)
        tokens = all_rules[2][0]
        for error, arguments in (
            (InvalidCost, (all_rules,)),
            (InvalidCost, (all_rules, 0)),
            (InvalidCost, (all_rules, 1.5)),
            (InvalidCost, ([(tokens, "a", 0)],)),
            (InvalidCost, ([(tokens,)], 5)),
            (InvalidKey, ([], 5)),
            (InvalidKey, ([(tokens, "")], 5)),
            (InvalidKey, ([(tokens, "a"), (tokens, "a")], 5)),
            (InvalidWait, (all_rules, 5, -1)),
            (InvalidWait, (all_rules, 5, 86_401)),
            (InvalidWait, (all_rules, 5, float("nan"))),
            (InvalidId, (all_rules, 5, 0, "x" * 65)),
        ):
            with pytest.raises(error):
                limits.admit(*arguments)
        assert client.info("commandstats").get("cmdstat_rl.all", {"calls": 0})["calls"] == calls
        for wrong in (-1, 1.5, "7"):
            with pytest.raises(InvalidCost):
                async with block(limits.admit(all_rules, 100)) as call:
                    call.used = wrong
        assert charged(client) == (0, 3, 0, 0)

    Both(kind, unix_socket_path=socket).run(test)


def test_thirty_calls_of_three_tenants_share_what_all_have(socket, client):
    seen = []

    async def test(limits):
        async def work(n, tenant):
            async with limits.admit(rules(limits, tenant, all_tokens=1000), 250, LONG_S) as call:
                seen.append(charged(client, tenant))
                await asyncio.sleep(0.005)
                if n % 3 == 0:
                    raise Own
                call.used = n

        calls = (work(n, tenant) for n in range(10) for tenant in ("ada", "bob", "eve"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for at, result in enumerate(results):
            assert isinstance(result, Own if at // 3 % 3 == 0 else type(None))

    waits = client.info("rl")["rl_waits"]
    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)
    assert len(seen) == 30
    assert all(leases <= 2 and of_all <= 1000 for leases, _, _, of_all in seen)
    total = sum(n for n in range(10) if n % 3)
    for tenant in ("ada", "bob", "eve"):
        assert charged(client, tenant) == (0, 10, total, 3 * total)
    assert client.info("rl")["rl_waits"] > waits and waiting(client) == 0


def test_threads_wait_for_each_other(socket, client):
    limits = limits_of(redis.Redis(unix_socket_path=socket))
    seen = []

    def work():
        with limits.admit(rules(limits), 250, LONG_S) as call:
            seen.append(charged(client))
            call.used = 10

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limits.close()
    assert len(seen) == 12 and all(leases <= 2 for leases, *_ in seen)
    assert charged(client) == (0, 12, 120, 120)


def test_a_tenant_that_waits_for_its_own_lease_delays_no_other(socket, client):
    async def test(limits):
        async def work(done):
            async with limits.admit(rules(limits), 100, LONG_S):
                await done.wait()

        done = asyncio.Event()
        tasks = [asyncio.create_task(work(done)) for _ in range(3)]
        await until(lambda: waiting(client) == 1)
        assert (inspect(client, HOLDS)["waiting"], inspect(client, ALL)["waiting"]) == (1, 0)
        assert charged(client) == (2, 2, 200, 200)
        async with limits.admit(rules(limits, "bob"), 100):
            assert charged(client) == (2, 2, 200, 300)
        done.set()
        await asyncio.gather(*tasks)
        assert charged(client) == (0, 3, 300, 400)

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


def test_a_task_that_is_cancelled_gives_back_or_leaves_the_lines(socket, client):
    async def test(limits):
        async def work():
            async with limits.admit(rules(limits), 600, LONG_S):
                await asyncio.sleep(3600)

        running = asyncio.create_task(work())
        await until(lambda: charged(client)[0] == 1)
        waiter = asyncio.create_task(work())
        await until(lambda: waiting(client) == 1)
        for task, left in ((waiter, (1, 1, 600, 600)), (running, (0, 1, 0, 0))):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: waiting(client) == 0)
            assert charged(client) == left
        assert not [each for each in client.client_list() if "b" in each["flags"]]

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


def test_a_task_that_is_cancelled_before_it_gets_the_reply_gives_back(proxy, client):
    async def test(limits):
        async def work():
            async with limits.admit(rules(limits), 600):
                pytest.fail("the block must not run")

        proxy.lose("reply", "RL.ALL", 1000)
        task = asyncio.create_task(work())
        await until(lambda: charged(client) == (1, 1, 600, 600))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: charged(client) == (0, 0, 0, 0))

    Both(redis.asyncio.Redis, unix_socket_path=proxy.server_address).run(test)


@KINDS
@pytest.mark.parametrize("spent", [120, 450])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_lost_reply_charges_once_and_settles_once(kind, proxy, client, what, spent):
    losses = [(what, command) for command in ("RL.ALL", "RL.SETTLE", "RL.SETTLE", "RL.SETTLE", "RL.RELEASE")]

    async def test(limits):
        for n in range(1, 3):
            for loss in losses:
                proxy.lose(*loss)
            async with block(limits.admit(rules(limits), 300)) as call:
                assert charged(client) == (1, n, (n - 1) * spent + 300, (n - 1) * spent + 300)
                call.used = spent
            assert charged(client) == (0, n, n * spent, n * spent) and ids(client) == 0

    Both(kind, unix_socket_path=proxy.server_address).run(test)
    assert proxy.lost == losses * 2


def test_a_lost_reply_of_a_waiter_charges_once(proxy, client):
    async def test(limits):
        async def waits():
            async with limits.admit(rules(limits), 600, LONG_S) as call:
                # The other call may still have its lease, because it releases it last.
                assert charged(client)[1:] == (2, 700, 700)
                call.used = 50

        async with limits.admit(rules(limits), 600) as call:
            # The server grants the waiter when this block ends. Then the reply is lost with its connection.
            proxy.lose("reply", "BLOCK")
            waiter = asyncio.create_task(waits())
            await until(lambda: waiting(client) == 1)
            call.used = 100
        await waiter
        assert charged(client) == (0, 2, 150, 150)

    Both(redis.asyncio.Redis, unix_socket_path=proxy.server_address).run(test)
    assert proxy.lost == [("reply", "BLOCK")]


@KINDS
def test_if_a_repeated_call_is_denied_what_the_first_has_charged_is_given_back(kind, proxy, client):
    async def test(limits):
        # All replies are lost until another holder has the leases: so the call is repeated, and then denied.
        proxy.lose("reply", "RL.ALL", 1000)

        def others():
            eventually(lambda: charged(client) == (1, 1, 300, 300))
            with client.pipeline(transaction=True) as pipeline:
                pipeline.delete(HOLDS)
                pipeline.execute_command("RL.LEASE", HOLDS, 2, 3600, "ID", "others", "COST", 2)
                pipeline.execute()
            proxy.to_lose.clear()

        thread = threading.Thread(target=others)
        thread.start()
        with pytest.raises(RateLimited) as denied:
            async with block(limits.admit(rules(limits), 300)):
                pytest.fail("ran without a lease")
        thread.join()
        assert denied.value.decision.name == "{gateway}running"
        assert charged(client) == (2, 0, 0, 0)

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_when_the_id_is_forgotten_only_the_excess_is_charged(kind, socket, client):
    async def test(limits):
        for spent, excess in [(450, 150), (120, 0), (..., 0)]:
            async with block(limits.admit(rules(limits), 300)) as call:
                client.delete(TOKENS, ALL)
                if spent is not ...:
                    call.used = spent
            assert charged(client)[2:] == (excess, excess)
            client.delete(TOKENS, ALL)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_keys_are_settled_in_the_reverse_order(kind, proxy, client):
    async def test(limits):
        async with block(limits.admit(rules(limits), 300)):
            proxy.seen.clear()

    Both(kind, unix_socket_path=proxy.server_address).run(test)
    ends = [data for data in proxy.seen if b"RL.SETTLE" in data or b"RL.RELEASE" in data]
    assert [key.encode() in data for key, data in zip((ALL, TOKENS, REQUESTS, HOLDS), ends)] == [True] * 4


@KINDS
def test_a_block_that_takes_longer_than_its_ttl_keeps_its_leases(kind, socket, client):
    renewed = client.info("rl")["rl_lease_granted"]

    async def test(limits):
        both = [*rules(limits, ttl=1), (limits.limit("{gateway}machine", Lease(1, 2)), "a")]
        async with block(limits.admit(both, 100)) as call:
            # Two leases are granted, and then renewed at least 4 times for the first one.
            await until(lambda: client.info("rl")["rl_lease_granted"] >= renewed + 8)
            assert charged(client)[0] == 1 and held(client, "{gateway}machine:a") == 1
            call.check()
        assert charged(client)[0] == 0 and held(client, "{gateway}machine:a") == 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_block_whose_lease_is_lost(kind, socket, client):
    async def test(limits):
        for used_in_block, left in ((None, (0, 1, 0, 0)), (40, (0, 2, 40, 40))):
            with pytest.raises(LeaseLost):
                async with block(limits.admit(rules(limits, ttl=0.6), 100)) as call:
                    client.delete(HOLDS)
                    call.used = used_in_block
                    if hasattr(call, "__aenter__"):
                        await asyncio.sleep(3600)
                    eventually(lambda: lost(call))
                    call.check()
            assert charged(client) == left
        await asyncio.sleep(0)

    Both(kind, unix_socket_path=socket).run(test)


def test_a_task_whose_lease_is_lost_and_other_cancellations(socket, client):
    async def test(limits):
        # A block that does not let itself be cancelled: it ends normally, and its estimate stays.
        with pytest.raises(LeaseLost):
            async with limits.admit(rules(limits, ttl=0.6), 100):
                client.delete(HOLDS)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(3600)
        assert charged(client) == (0, 1, 100, 100)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(hangs(limits), 0.5)
        assert charged(client) == (0, 2, 100, 100)

    async def hangs(limits):
        async with limits.admit(rules(limits), 100):
            await asyncio.sleep(3600)

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


@KINDS
def test_a_block_whose_server_hangs_stops_when_its_lease_has_ended(kind):
    with running_server() as (process, socket):
        stopped = []

        async def test(limits):
            with pytest.raises(LeaseLost):
                async with block(limits.admit(rules(limits, ttl=1), 100)) as call:
                    process.send_signal(signal.SIGSTOP)
                    try:
                        if hasattr(call, "__aenter__"):
                            await asyncio.sleep(3600)
                        eventually(lambda: lost(call))
                    finally:
                        process.send_signal(signal.SIGCONT)
                        stopped.append(1)

        try:
            Both(kind, unix_socket_path=socket, socket_timeout=60).run(test)
        finally:
            process.send_signal(signal.SIGCONT)
        assert stopped == [1]


@KINDS
def test_a_renewal_that_fails_in_any_way_is_tried_again(kind, socket, client, monkeypatch):
    renew, failures = lease_class(kind).renew, []

    def fails(lease):
        failures.append(len(failures))
        if len(failures) == 2:
            raise KeyError("a defect")
        return renew(lease)

    monkeypatch.setattr(lease_class(kind), "renew", fails)

    async def test(limits):
        async with block(limits.admit(rules(limits, ttl=30), 100)) as call:
            await until(lambda: len(failures) > 2)
            assert charged(client)[0] == 1
            call.check()

    Both(kind, unix_socket_path=socket).run(test)


CRASHES = """
import sys, time, redis
from helpers import limits_of
from test_admit import rules
limits = limits_of(redis.Redis(unix_socket_path=sys.argv[1]))
with limits.admit(rules(limits, ttl=1), 300, id="job-7"):
    print("in the middle", flush=True)
    time.sleep(3600)
"""


@KINDS
def test_a_process_that_is_killed_frees_its_lease_and_a_new_one_continues_its_charge(kind, socket, client):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    command = [sys.executable, "-B", "-c", CRASHES, socket]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    try:
        assert process.stdout.readline() == "in the middle\n"
        assert charged(client) == (1, 1, 300, 300)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

    async def test(limits):
        # The lease ends by itself. The tokens stay charged until they are settled.
        await until(lambda: inspect(client, HOLDS) is None)
        assert charged(client) == (0, 1, 300, 300)
        # This time the estimate is higher, but the charge is the one of the first time.
        async with block(limits.admit(rules(limits), 400, id="job-7")) as call:
            assert charged(client) == (1, 1, 300, 300)
            call.used = 350
        assert charged(client) == (0, 1, 350, 350)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_down_raises_before_the_block_and_never_after_it(kind, caplog, stop):
    with running_server() as (process, socket):

        async def test(limits):
            async with block(limits.admit(rules(limits), 300)) as call:
                process.send_signal(stop)
                if stop == signal.SIGKILL:
                    process.wait()
                call.used = 120
                begin = time.monotonic()
            # All four keys share the time of one call.
            assert time.monotonic() - begin < 20
            assert "{gateway}tokens: a charge of 300 was not settled to 120" in caplog.text
            assert "{gateway}running: " in caplog.text and " was not released" in caplog.text
            for wait in (0, LONG_S) if stop == signal.SIGKILL else (0,):
                with pytest.raises(Unavailable):
                    async with block(limits.admit(rules(limits), 300, wait)):
                        pytest.fail("ran without a charge")

        async def goes_on(limits):
            async with block(limits.admit(rules(limits), 300)) as call:
                assert call.decision.source == "down" and call.decision.headers() == {}
                call.check()
                call.used = 120

        Both(kind, unix_socket_path=socket, socket_timeout=None).run(test, timeout=0.3, connect_timeout=0.3)
        Both(kind, unix_socket_path=socket, socket_timeout=None).run(goes_on, timeout=0.3, connect_timeout=0.3, on_down="open")
        process.send_signal(signal.SIGCONT)


def test_calls_that_wait_leave_connections_to_the_calls_that_run(socket, client):
    granted = client.info("rl")["rl_lease_granted"]

    async def test(limits):
        async def work():
            async with limits.admit(rules(limits, ttl=1), 10, LONG_S) as call:
                call.used = 1

        async with limits.admit(rules(limits, ttl=1), 10), limits.admit(rules(limits, ttl=1), 10):
            tasks = [asyncio.create_task(work()) for _ in range(12)]
            await until(lambda: waiting(client) == 12)
            # Both leases are renewed.
            await until(lambda: client.info("rl")["rl_lease_granted"] >= granted + 10)
            assert charged(client)[0] == 2 and waiting(client) == 12
        await asyncio.gather(*tasks)
        assert charged(client) == (0, 14, 32, 32)

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test, max_connections=2)


@pytest.mark.parametrize("use", [None, 50])
def test_a_second_cancellation_does_not_end_the_settlement(socket, client, use):
    left = (0, 1, 0, 0) if use is None else (0, 1, 50, 50)

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        limits = limits_of(other)

        entered = asyncio.Event()

        async def work():
            async with limits.admit(rules(limits), 600) as call:
                call.used = use
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await asyncio.wait_for(entered.wait(), 60)
        assert charged(client)[0] == 1
        # The heartbeats end, then the settlement begins: the second cancellation meets one or the other.
        for _ in range(20):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await limits.aclose()
        assert charged(client) == left

        # anyio cancels a task again at each await, until the scope ends.
        client.flushall()
        limits = limits_of(other)
        with anyio.CancelScope() as scope:
            async with limits.admit(rules(limits), 600) as call:
                call.used = use
                scope.cancel()
                await anyio.sleep(3600)
        await limits.aclose()
        assert charged(client) == left
        await other.aclose()

    asyncio.run(main())


def test_a_stream_that_breaks_is_charged_what_it_has_sent(socket, client):
    async def test(limits):
        entered = asyncio.Event()

        async def stream():
            async with limits.admit(rules(limits), 600) as call:
                call.used = 100
                for _ in range(3):
                    call.used += 7
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(stream())
        await asyncio.wait_for(entered.wait(), 60)
        assert charged(client)[0] == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert charged(client) == (0, 1, 121, 121)

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


@KINDS
def test_a_waiting_call_that_a_failover_ends_calls_again(kind, socket, client):
    """The waiting call gets UNBLOCKED, and then READONLY each time that it calls again, until the server is a primary."""
    before = refused(client)

    def blocked(*seen):
        return [each["id"] for each in client.client_list() if "b" in each["flags"] and each["id"] not in seen]

    async def test(limits):
        def change():
            seen = []
            for _ in range(3):
                seen += eventually(lambda: blocked(*seen))
                # The reply is the same as on a failover.
                client.client_unblock(seen[-1], error=True)
            eventually(lambda: blocked(*seen))
            client.replicaof("127.0.0.1", 1)
            eventually(lambda: refused(client) >= before + 2)
            client.replicaof("NO", "ONE")
            eventually(lambda: waiting(client) == 1)
            client.execute_command("RL.RELEASE", HOLDS, "other")

        client.execute_command("RL.LEASE", HOLDS, 2, 3600, "ID", "other", "COST", 2)
        thread = threading.Thread(target=change)
        thread.start()
        async with block(limits.admit(rules(limits), 600, LONG_S)) as call:
            call.used = 50
        thread.join()
        assert charged(client) == (0, 1, 50, 50)

    try:
        Both(kind, unix_socket_path=socket).run(test)
    finally:
        client.replicaof("NO", "ONE")


@CLUSTERS
def test_keys_with_several_slots(kind, cluster):
    async def test(limits):
        with pytest.raises(InvalidKey, match="hash tag"):
            limits.admit([(limits.limit("a", Gcra("1/s")), "x"), (limits.limit("b", Gcra("1/s")), "y")], 1)

    Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)
