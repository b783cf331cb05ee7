"""Lost replies, time-outs, cancelled tasks, servers that are down or refuse: what is charged is read on the server."""

import asyncio
import concurrent.futures
import contextlib
import inspect as inspect_module
import logging
import multiprocessing
import os
import signal
import socket as socket_module
import sys
import threading
import time

import pytest
import redis
import redis.asyncio

from conftest import (
    PATIENCE,
    certificate,
    eventually,
    folder,
    free_ports,
    inspect,
    running,
    running_cluster,
    running_server,
    tls_options,
)
from helpers import HALF, lease_class, lost, block, Both, CLUSTERS, held, HOUR, KINDS, limits_of, refused, used, value, waiting
from redis_rl import (
    Closed,
    Unavailable,
    Fixed,
    Gcra,
    InvalidKey,
    Lease,
    LeaseLost,
    NoModule,
    NotAllowed,
    RateLimited,
    Slide,
    UnexpectedReply,
    WrongType,
)

# Lost replies


@KINDS
def test_without_an_id_a_call_is_sent_once(kind, proxy, client):
    async def test(limits):
        limit = limits.limit("api", HOUR)
        assert await value(limit.take("a"))
        for what in ("reply", "request"):
            for call in (lambda: limit.take("a"), lambda: limit.force("a", 1), lambda: limit.wait("a", 30)):
                proxy.lose(what, "RL.FIXED")
                with pytest.raises(Unavailable) as raised:
                    await value(call())
                assert raised.value.sent and isinstance(raised.value.__cause__, redis.ConnectionError)
        assert await value(limit.take("a"))

    Both(kind, unix_socket_path=proxy.server_address).run(test)
    # One before, three whose replies were lost, one after.
    assert used(client, "api:a") == 5 and len(proxy.lost) == 6


@KINDS
def test_with_an_id_a_call_is_charged_once(kind, proxy, client):
    async def test(limits):
        limit = limits.limit("tokens", HOUR)
        for loss in (["reply"], ["request"], ["reply", "reply", "request", "reply"]):
            for wait in (None, 30):
                before = used(client, "tokens:a")
                for what in loss:
                    proxy.lose(what, "RL.FIXED")
                async with block(limit.charge("a", 100, wait=wait)) as charge:
                    assert used(client, "tokens:a") == before + 100 and charge.decision.granted == 100
                    for what in loss:
                        proxy.lose(what, "RL.SETTLE")
                    charge.used = 10
                assert used(client, "tokens:a") == before + 10
                assert not proxy.to_lose

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_a_settlement_above_the_estimate_is_charged_once(kind, proxy, client):
    async def test(limits):
        limit = limits.limit("tokens", HOUR)
        # The first RL.SETTLE was executed, so the nil of the second one does not mean that the difference is to be charged.
        async with block(limit.charge("a", 100)) as charge:
            proxy.lose("reply", "RL.SETTLE")
            charge.used = 150
        assert used(client, "tokens:a") == 150
        # The reply of FORCE is lost: it is not sent again.
        async with block(limit.charge("b", 100)) as charge:
            client.delete("tokens:b")
            proxy.lose("reply", "FORCE")
            charge.used = 150
        assert used(client, "tokens:b") == 50 and not proxy.to_lose

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_all_with_an_id_is_charged_once(kind, proxy, client):
    async def test(limits):
        rules = [(limits.limit("requests", HOUR), "a", 1), (limits.limit("running", Lease(2, 60)), "a", 1)]
        for wait in (None, 30):
            proxy.lose("reply", "RL.ALL")
            decision = await value(limits.all(rules, wait=wait))
            assert decision and decision.id
        proxy.lose("reply", "RL.ALL")
        with pytest.raises(Unavailable):
            await value(limits.all([rules[0], (limits.limit("others", HOUR), "a")]))

    Both(kind, unix_socket_path=proxy.server_address).run(test)
    assert used(client, "requests:a") == 3 and inspect(client, "running:a")["held"] == 2


@KINDS
def test_all_that_fails_gives_back_what_it_may_have_charged(kind, proxy, client):
    async def test(limits):
        rules = [(limits.limit("requests", HOUR), "a", 1), (limits.limit("running", Lease(2, 60)), "a", 1)]
        proxy.lose("reply", "RL.ALL", 1000)
        with pytest.raises(Unavailable) as raised:
            await value(limits.all(rules))
        assert raised.value.sent

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=0.5)
    assert used(client, "requests:a") == 0 and inspect(client, "running:a") is None


@KINDS
@pytest.mark.parametrize("wait", [None, 30])
def test_a_lease_is_taken_once(kind, wait, proxy, client):
    async def test(limits):
        limit = limits.limit("jobs", Lease(5, 60))
        proxy.lose("reply", "RL.LEASE", 2)
        async with block(limit.hold("a", wait=wait)):
            assert inspect(client, "jobs:a")["held"] == 1
            proxy.lose("reply", "RL.RELEASE")
        assert inspect(client, "jobs:a") is None and not proxy.to_lose

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_what_never_gets_a_reply(kind, proxy, client):
    """The call fails when its time is over, and what it may have been charged is given back."""

    async def test(limits):
        limit = limits.limit("tokens", HOUR)
        # On a busy machine, a connection may take longer than the call has.
        assert await value(limit.peek("a"))
        proxy.lose("reply", "RL.FIXED", 1000)
        with pytest.raises(Unavailable) as raised:
            async with block(limit.charge("a", 100)):
                raise AssertionError("the block must not run")
        assert raised.value.sent
        await asyncio.to_thread(eventually, lambda: used(client, "tokens:a") == 0)
        jobs = limits.limit("jobs", Lease(5, 60))
        proxy.lose("reply", "RL.LEASE", 1000)
        with pytest.raises(Unavailable):
            async with block(jobs.hold("a")):
                raise AssertionError("the block must not run")
        await asyncio.to_thread(eventually, lambda: inspect(client, "jobs:a") is None)

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=0.5, connect_timeout=0.5)


# Time-outs


@KINDS
def test_a_wait_may_be_longer_than_the_time_out_of_the_client(kind, socket, client):
    granted = client.info("rl")["rl_gcra_granted"]

    async def test(limits):
        limit = limits.limit("api", Gcra("2/s", burst=1))
        for _ in range(3):
            assert await value(limit.wait("a", 30))
        async with block(limit.charge("a", 1, wait=30)):
            pass
        async with block(limits.limit("jobs", Lease(1, 60)).hold("a", wait=30)):
            pass
        assert await value(limits.all([(limit, "a", 1)], wait=30))

    Both(kind, unix_socket_path=socket, socket_timeout=0.1).run(test)
    assert client.info("rl")["rl_gcra_granted"] == granted + 5


def test_a_wait_may_be_longer_than_the_default_time_out(socket, client):
    """redis-py's is 5 seconds. The server denies each call after 6 seconds, because a lease does not end."""
    client.execute_command("RL.LEASE", "jobs:a", 1, 60, "ID", "other")
    denied = client.info("rl")["rl_lease_denied"]

    def threads():
        with pytest.raises(RateLimited):
            with limits_of(redis.Redis(unix_socket_path=socket)).limit("jobs", Lease(1, 60)).hold("a", wait=6):
                pass

    async def tasks():
        client = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(client) as limits:
            with pytest.raises(RateLimited):
                async with limits.limit("jobs", Lease(1, 60)).hold("a", wait=6):
                    pass
        await client.aclose()

    thread = threading.Thread(target=threads)
    thread.start()
    asyncio.run(tasks())
    thread.join()
    assert client.info("rl")["rl_lease_denied"] == denied + 2


# Settings with which redis-py sends nothing when it connects.
SILENT = (
    {"driver_info": None, "protocol": 2}
    if "driver_info" in inspect_module.signature(redis.Redis).parameters
    else {"lib_name": None, "lib_version": None, "protocol": 2}
)


@contextlib.contextmanager
def silent_server(answer=b""):
    """A server that answers each command with the same bytes, or never."""
    with folder() as home, socket_module.socket(socket_module.AF_UNIX) as listener:
        path = str(home / "s")
        listener.bind(path)
        listener.listen()
        connections = []

        def serve(connection):
            with contextlib.suppress(OSError):
                while connection.recv(65536):
                    connection.sendall(answer)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket_module.SHUT_RDWR)
            thread.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket_module.SHUT_RDWR)
                connection.close()


@KINDS
@pytest.mark.parametrize("options", [{}, {"socket_timeout": None}, {"socket_timeout": 0.1}], ids=str)
def test_a_server_that_hangs(kind, options):
    """A call fails when its time is over, whatever the time-out of the client; one that waits, a second after its
    wait. The error says how long that was."""

    async def test(limits, call, seconds):
        begin = time.monotonic()
        with pytest.raises(Unavailable, match=f"no reply after {seconds} s"):
            await value(call(limits.limit("api", HOUR)))
        assert float(seconds) <= time.monotonic() - begin < 60

    with silent_server() as socket:
        for call, seconds in ((lambda limit: limit.take("a"), "0.4"), (lambda limit: limit.wait("a", 0.5), "1.5")):
            both = Both(kind, unix_socket_path=socket, **SILENT, **options)
            both.run(lambda limits: test(limits, call, seconds), timeout=0.4)


@KINDS
@pytest.mark.parametrize(
    "answer", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*2\r\n:1\r\n:2\r\n", b"*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n$1\r\n1\r\n"]
)
@pytest.mark.parametrize("on_down", ["open", "closed"])
def test_a_server_that_answers_something_else(kind, answer, on_down):
    async def test(limits):
        limit = limits.limit("api", HOUR)
        for call in (lambda: limit.take("a"), lambda: limit.peek("a"), lambda: limits.all([(limit, "a", 1)])):
            with pytest.raises(UnexpectedReply):
                await value(call())

    with silent_server(answer) as socket:
        Both(kind, unix_socket_path=socket, **SILENT).run(test, on_down=on_down)


# Cancelling


def test_a_cancelled_task_leaves_the_line(socket, client):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(other) as limits:
            limit, jobs = limits.limit("api", Gcra("1/h")), limits.limit("jobs", Lease(1, 600))
            assert await limit.take("a")
            assert await limits.all([(jobs, "a", 1)], id="other")

            async def charge():
                async with limit.charge("a", 1, wait=7200):
                    pass

            async def hold():
                async with jobs.hold("a", wait=600):
                    pass

            calls = (lambda: limit.wait("a", 7200), charge, hold, lambda: limits.all([(limit, "a", 1)], wait=7200))
            for call in calls:
                task = asyncio.ensure_future(call())
                await asyncio.to_thread(eventually, lambda: waiting(client) == 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(eventually, lambda: waiting(client) == 0)
        await other.aclose()
        # Neither is a connection left that waits.
        assert not [each for each in client.client_list() if "b" in each["flags"]]

    asyncio.run(main())
    assert used(client, "api:a") == 1 and inspect(client, "jobs:a")["held"] == 1


def test_a_task_may_be_cancelled_at_each_of_its_steps(socket, client):
    """Also at the moment when the command has just been sent."""

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(other) as limits:
            limit, busy = limits.limit("api", Gcra("1/h")), limits.limit("busy", HOUR)
            assert await limit.take("a")
            for steps in range(30):
                # Makes sure that a connection is there: then nothing waits for the server before the reply.
                assert await busy.take("a")
                task = asyncio.ensure_future(limit.wait("a", 7200))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                done, _ = await asyncio.wait({task}, timeout=PATIENCE)
                assert done and task.cancelled(), f"cancelled at step {steps}"
                await asyncio.to_thread(eventually, lambda: waiting(client) == 0)
        await other.aclose()

    asyncio.run(main())
    assert used(client, "api:a") == 1


def test_a_cancelled_wait_closes_only_its_own_connection(socket, client):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(other) as limits:
            limit = limits.limit("api", Gcra("1/h"))
            assert sum([bool(each) for each in await asyncio.gather(*(limit.take("a") for _ in range(5)))]) == 1
            ids = lambda: {each["id"] for each in client.client_list()}
            before = ids()
            # One of the five carries the wait, and is closed.
            task = asyncio.ensure_future(limit.wait("a", 7200))
            await asyncio.to_thread(eventually, lambda: waiting(client) == 1)
            task.cancel()
            await asyncio.wait({task})
            await asyncio.to_thread(eventually, lambda: waiting(client) == 0)
            assert len(before - ids()) == 1
        await other.aclose()

    asyncio.run(main())


def test_a_cancelled_charge_that_was_granted_is_given_back(proxy, client):
    """The task is cancelled after the server has granted the call, and before the reply arrives."""

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=proxy.server_address)
        async with limits_of(other) as limits:
            limit = limits.limit("tokens", HOUR)

            async def work():
                async with limit.charge("a", 100):
                    raise AssertionError("the block must not run")

            # All replies are lost until the task is cancelled: so it is about to repeat the call.
            proxy.lose("reply", "RL.FIXED", 1000)
            task = asyncio.ensure_future(work())
            await asyncio.to_thread(eventually, lambda: used(client, "tokens:a") == 100)
            task.cancel()
            # A second cancellation does not stop the release.
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: used(client, "tokens:a") == 0)
        await other.aclose()

    asyncio.run(main())


@KINDS
@pytest.mark.parametrize("on_down", ["open", "closed"])
def test_closing_ends_the_calls_that_wait(on_down, kind, socket, client):
    client.execute_command("RL.FIXED", "api:a", 1, 3600)
    client.execute_command("RL.LEASE", "jobs:a", 1, 3600, "ID", "other")

    async def entered(call):
        async with block(call):
            pytest.fail("ran without a decision")

    async def ends(call):
        with pytest.raises(Closed, match="closed"):
            await value(call())

    async def test(limits):
        limit, jobs = limits.limit("api", Fixed("1/h")), limits.limit("jobs", Lease(1, 60))
        calls = (
            lambda: limit.wait("a", 7200),
            lambda: entered(limit.charge("a", 1, wait=7200)),
            lambda: entered(jobs.hold("a", wait=7200)),
            lambda: entered(limits.admit([(limit, "a", 1)], wait=7200)),
            lambda: limits.all([(limit, "a", 1)], wait=7200),
        )
        if kind is redis.Redis:
            with concurrent.futures.ThreadPoolExecutor() as threads:
                results = [threads.submit(asyncio.run, ends(call)) for call in calls]
                eventually(lambda: waiting(client) == len(calls))
                limits.close()
                for each in results:
                    each.result(PATIENCE)
        else:
            tasks = [asyncio.ensure_future(ends(call)) for call in calls]
            await asyncio.to_thread(eventually, lambda: waiting(client) == len(calls))
            await limits.aclose()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        eventually(lambda: waiting(client) == 0)
        for call in (lambda: limit.take("a"), lambda: limit.peek("a"), lambda: limit.release("a", "id"), *calls):
            await ends(call)

    Both(kind, unix_socket_path=socket).run(test, on_down=on_down)
    assert (held(client, "jobs:a"), used(client, "api:a")) == (1, 1)


LATE_CALLS = pytest.mark.parametrize("call", ["charge", "hold", "admit", "all"])


def late_call(limits, call, id=None):
    jobs, tokens = limits.limit("jobs", Lease(1, 60)), limits.limit("tokens", HOUR)
    if call == "charge":
        return tokens.charge("a", 100, id=id)
    if call == "hold":
        return jobs.hold("a", id=id)
    rules = [(jobs, "a", 1), (tokens, "a", 100)]
    return limits.all(rules, id=id) if call == "all" else limits.admit(rules, id=id)


async def entered(result):
    if hasattr(result, "__aenter__") or hasattr(result, "__enter__"):
        async with block(result):
            pytest.fail("ran without a decision")
    return await value(result)


def late_use(client):
    return held(client, "jobs:a"), used(client, "tokens:a")


LATE_USES = {"charge": (0, 100), "hold": (1, 0), "admit": (1, 100), "all": (1, 100)}


def releases(client):
    return client.info("commandstats").get("cmdstat_rl.release", {"calls": 0})["calls"]


@KINDS
@LATE_CALLS
@pytest.mark.parametrize("end", ["later", "close"])
def test_a_call_that_reaches_the_server_after_its_release(end, call, kind, proxy, client, monkeypatch):
    monkeypatch.setattr(HALF[kind] + "._limits.AGAIN_S", (2, 1) if end == "later" else (600, 600))
    # One for each key. A call that arrived between two of them would lose one of its charges at once.
    after = releases(client) + (2 if call in ("admit", "all") else 1)

    async def test(limits):
        proxy.delay({"charge": "RL.FIXED", "hold": "RL.LEASE"}.get(call, "RL.ALL"))
        with pytest.raises(Unavailable) as raised:
            await entered(late_call(limits, call))
        assert raised.value.sent and late_use(client) == (0, 0)
        await asyncio.to_thread(eventually, lambda: releases(client) >= after)
        proxy.go_on.set()
        eventually(lambda: late_use(client) == LATE_USES[call])
        if end == "later":
            await asyncio.to_thread(eventually, lambda: late_use(client) == (0, 0))

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=0.4)
    assert late_use(client) == (0, 0)


@LATE_CALLS
def test_a_cancelled_call_that_reaches_the_server_after_its_release(call, proxy, client, monkeypatch):
    monkeypatch.setattr("redis_rl._async._limits.AGAIN_S", (600, 600))
    before = releases(client)

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=proxy.server_address)
        async with limits_of(other) as limits:
            command = {"charge": "RL.FIXED", "hold": "RL.LEASE"}.get(call, "RL.ALL")
            proxy.delay(command)
            task = asyncio.ensure_future(entered(late_call(limits, call)))
            seen = lambda: any(command.encode() in each for each in proxy.seen)
            await asyncio.to_thread(eventually, seen)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert late_use(client) == (0, 0) and releases(client) > before
            proxy.go_on.set()
            await asyncio.to_thread(eventually, lambda: late_use(client) == LATE_USES[call])
        await other.aclose()

    asyncio.run(main())
    assert late_use(client) == (0, 0)


@KINDS
@LATE_CALLS
def test_an_id_of_the_program_is_released_once(call, kind, proxy, client, monkeypatch):
    """If its block does not run: the program may use it again. `all` has no block, so the program may ask again by its id."""
    monkeypatch.setattr(HALF[kind] + "._limits.AGAIN_S", (0.01, 0.01))
    before = releases(client)
    keys = {"admit": 2, "all": 0}.get(call, 1)

    async def test(limits):
        proxy.delay({"charge": "RL.FIXED", "hold": "RL.LEASE"}.get(call, "RL.ALL"))
        with pytest.raises(Unavailable):
            await entered(late_call(limits, call, id="mine"))
        await asyncio.to_thread(eventually, lambda: releases(client) == before + keys)
        proxy.go_on.set()
        await asyncio.to_thread(eventually, lambda: late_use(client) == LATE_USES[call])

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=0.4)
    assert late_use(client) == LATE_USES[call] and releases(client) == before + keys


def test_a_cancelled_block_settles(socket, client):
    async def main(use, rest):
        other = redis.asyncio.Redis(unix_socket_path=socket)
        limits = limits_of(other)
        limit, entered = limits.limit("tokens", HOUR), asyncio.Event()

        async def work():
            async with limit.charge("a", 100) as charge:
                if use:
                    charge.used = 30
                entered.set()
                await asyncio.sleep(600)

        task = asyncio.ensure_future(work())
        await asyncio.wait_for(entered.wait(), 60)
        assert used(client, "tokens:a") == 100
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # It waits for the settlement, which goes on although its task was cancelled twice.
        await limits.aclose()
        assert used(client, "tokens:a") == rest
        await other.aclose()

    for use, rest in ((False, 0), (True, 30)):
        asyncio.run(main(use, rest))


# Leases


@KINDS
def test_a_lease_is_renewed_while_the_block_runs(kind, socket, client):
    granted = client.info("rl")["rl_lease_granted"]

    async def test(limits):
        async with block(limits.limit("jobs", Lease(1, 1)).hold("a")) as lease:
            await asyncio.to_thread(eventually, lambda: client.info("rl")["rl_lease_granted"] >= granted + 6)
            assert inspect(client, "jobs:a")["held"] == 1
            lease.check()

    Both(kind, unix_socket_path=socket).run(test)
    assert inspect(client, "jobs:a") is None


@KINDS
def test_a_lost_lease(kind, socket, client):
    async def test(limits):
        jobs = limits.limit("jobs", Lease(1, 0.6))
        with pytest.raises(LeaseLost):
            async with block(jobs.hold("a")) as lease:
                client.delete("jobs:a")
                if hasattr(lease, "__aenter__"):
                    await asyncio.sleep(60)
                    raise AssertionError("the block was not cancelled")
                eventually(lambda: lost(lease))
        # The task goes on, and is not cancelled any more.
        await asyncio.sleep(0.01)
        # The lease of another holder is not released.
        client.execute_command("RL.LEASE", "jobs:a", 1, 60, "ID", "other")
        assert inspect(client, "jobs:a")["held"] == 1

    Both(kind, unix_socket_path=socket).run(test)


@pytest.mark.parametrize("call", ["hold", "admit"])
def test_a_lost_lease_of_a_task_that_was_cancelled_before(call, socket, client):
    """A cancellation that was caught stays counted, as after a TaskGroup that has failed."""

    async def test(limits):
        jobs = limits.limit("jobs", Lease(1, 0.6))

        async def work():
            task = asyncio.current_task()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            assert sys.version_info < (3, 11) or task.cancelling() == 1
            async with jobs.hold("a") if call == "hold" else limits.admit([(jobs, "a")]):
                client.delete("jobs:a")
                await asyncio.sleep(PATIENCE)

        [result] = await asyncio.gather(work(), return_exceptions=True)
        assert isinstance(result, LeaseLost)

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


@KINDS
def test_a_lease_whose_renewals_get_no_reply_is_lost(kind, proxy, client):
    async def test(limits):
        jobs = limits.limit("jobs", Lease(1, 1))
        with pytest.raises(LeaseLost):
            async with block(jobs.hold("a")) as lease:
                proxy.lose("request", "RENEW", 100_000)
                if hasattr(lease, "__aenter__"):
                    await asyncio.sleep(60)
                    raise AssertionError("the block was not cancelled")
                eventually(lambda: lost(lease))
        eventually(lambda: inspect(client, "jobs:a") is None)

    Both(kind, unix_socket_path=proxy.server_address).run(test)


def test_a_task_that_is_cancelled_while_it_holds_a_lease(socket, client):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(other) as limits:

            async def work():
                async with limits.limit("jobs", Lease(1, 60)).hold("a"):
                    await asyncio.sleep(600)

            task = asyncio.ensure_future(work())
            await asyncio.to_thread(eventually, lambda: inspect(client, "jobs:a"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert inspect(client, "jobs:a") is None
        await other.aclose()

    asyncio.run(main())


@KINDS
def test_a_holder_that_begins_again_takes_its_own_lease_and_charge(kind, socket, client):
    """As a process that restarts does, with an id that it still knows."""
    client.execute_command("RL.LEASE", "jobs:a", 1, 60, "ID", "job:7")
    client.execute_command("RL.FIXED", "tokens:a", 1000, "1h", "COST", 100, "ID", "job:7")

    async def test(limits):
        jobs, tokens = limits.limit("jobs", Lease(1, 60)), limits.limit("tokens", HOUR)
        with pytest.raises(RateLimited):
            async with block(jobs.hold("a")):
                pytest.fail("ran without a lease")
        async with block(jobs.hold("a", id="job:7")), block(tokens.charge("a", 300, id="job:7")) as charge:
            assert held(client, "jobs:a") == 1 and used(client, "tokens:a") == charge.decision.granted == 100
            charge.used = 250
        assert held(client, "jobs:a") == 0 and used(client, "tokens:a") == 250

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_waiter_whose_connection_breaks_waits_again(kind, socket, client):
    # The server may count a client that was killed for a moment longer. So the test looks at the connections.
    def blocked(*seen):
        return [each["id"] for each in client.client_list() if "b" in each["flags"] and each["id"] not in seen]

    def breaks():
        seen = []
        for _ in range(2):
            seen += eventually(lambda: blocked(*seen))
            client.client_kill_filter(_id=seen[-1])
        eventually(lambda: blocked(*seen))
        client.execute_command("RL.RELEASE", "jobs:a", "other")

    async def test(limits):
        client.execute_command("RL.LEASE", "jobs:a", 1, 600, "ID", "other")
        thread = threading.Thread(target=breaks)
        thread.start()
        async with block(limits.limit("jobs", Lease(1, 600)).hold("a", wait=120)):
            assert held(client, "jobs:a") == 1
        thread.join()

    Both(kind, unix_socket_path=socket).run(test)
    assert held(client, "jobs:a") == 0


@KINDS
def test_a_block_does_not_begin_if_its_lease_has_ended_already(kind, socket, client, monkeypatch):
    """A lease that had to wait is renewed before the block, because nobody knows when it was granted."""
    renew = lease_class(kind).renew

    def late(lease):
        client.delete(lease.key)
        return renew(lease)

    monkeypatch.setattr(lease_class(kind), "renew", late)

    async def test(limits):
        jobs, tokens = limits.limit("{a}jobs", Lease(1, 0.3)), limits.limit("{a}tokens", HOUR)
        for begins in (lambda: jobs.hold("a", wait=60), lambda: limits.admit([(jobs, "a"), (tokens, "a")], 100, wait=60)):
            client.execute_command("RL.LEASE", "{a}jobs:a", 1, 0.3, "ID", "other")
            with pytest.raises(LeaseLost):
                async with block(begins()):
                    pytest.fail("ran without a lease")
            assert used(client, "{a}tokens:a") == 0 and held(client, "{a}jobs:a") == 0

    Both(kind, unix_socket_path=socket).run(test)


def test_a_block_that_stops_its_event_loop_is_cancelled_late(socket, client):
    async def test(limits):
        after = []
        with pytest.raises(LeaseLost):
            async with limits.limit("jobs", Lease(1, 0.6)).hold("a"):
                time.sleep(1.2)
                after.append(held(client, "jobs:a"))
                await asyncio.sleep(60)
                after.append("the block was not cancelled")
        assert after == [0]

    Both(redis.asyncio.Redis, unix_socket_path=socket).run(test)


# Servers that give no decision


@KINDS
def test_open_logs_once_a_second(kind, dead_socket, caplog):
    async def test(limits):
        limit = limits.limit("api", HOUR)
        begin = time.monotonic()
        with caplog.at_level(logging.WARNING, logger="redis_rl"):
            for _ in range(50):
                assert (await value(limit.take("a"))).source == "down"
        assert 1 <= len(caplog.records) <= 1 + (time.monotonic() - begin)

    Both(kind, unix_socket_path=dead_socket).run(test, on_down="open")


@KINDS
def test_a_server_that_refuses_writes(kind, socket, client):
    """OOM and READONLY: no decision, and the next call asks again."""

    async def test(limits):
        limit = limits.limit("api", HOUR)
        calls = (lambda: limit.take("a"), lambda: limits.all([(limit, "a")], id="one"))
        for begin, end in (
            (lambda: client.config_set("maxmemory", 1), lambda: client.config_set("maxmemory", 0)),
            (lambda: client.replicaof("127.0.0.1", "1"), lambda: client.replicaof("NO", "ONE")),
        ):
            begin()
            try:
                for call in calls:
                    with pytest.raises(Unavailable, match="no decision.*(raise maxmemory|connect to the primary)"):
                        await value(call())
            finally:
                end()
            assert await value(limit.take("a"))

    Both(kind, unix_socket_path=socket).run(test)
    assert used(client, "api:a") == 2


@KINDS
def test_a_server_where_too_many_calls_wait(kind, socket, client):
    """It decides nothing about a call that would have to wait, too."""

    async def test(limits):
        client.execute_command("RL.LEASE", "jobs:a", 1, 600, "ID", "other")
        client.config_set("rl.max-waiters", 1)
        call = ("RL.LEASE", "jobs:a", 1, 600, "ID", "first", "BLOCK", 60)
        first = threading.Thread(target=client.execute_command, args=call)
        first.start()
        try:
            eventually(lambda: waiting(client) == 1)
            with pytest.raises(Unavailable, match="too many waiting calls"):
                async with block(limits.limit("jobs", Lease(1, 600)).hold("a", wait=60)):
                    pytest.fail("ran without a lease")
        finally:
            client.config_set("rl.max-waiters", 0)
            client.delete("jobs:a")
            first.join()

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_waiting_call_whose_server_becomes_a_replica(kind, socket, client):
    async def test(limits):
        client.execute_command("RL.LEASE", "jobs:a", 1, 600, "ID", "other")

        def change():
            eventually(lambda: waiting(client) == 1)
            client.replicaof("127.0.0.1", "1")
            client.replicaof("NO", "ONE")
            client.execute_command("RL.RELEASE", "jobs:a", "other")

        thread = threading.Thread(target=change)
        thread.start()
        async with block(limits.limit("jobs", Lease(1, 600)).hold("a", wait=60)) as lease:
            assert inspect(client, "jobs:a")["held"] == 1 and lease.decision
        thread.join()

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_wrong_passwords_and_users(kind):
    with running_server("--requirepass", "secret") as (_, socket):

        async def denied(limits):
            with pytest.raises(NotAllowed, match="password|ACL SETUSER"):
                await value(limits.limit("api", HOUR).take("a"))
            # Also calls that do not ask the server, because it was found down.
            for breaker in [node.breaker for node in limits._calls._nodes.values()]:
                breaker._next = time.monotonic() + 3600
            with pytest.raises(NotAllowed, match="password|ACL SETUSER"):
                async with block(limits.limit("tokens", HOUR).charge("a", 1)):
                    pytest.fail("ran without a charge")

        async def let_through(limits):
            for _ in range(3):
                assert (await value(limits.limit("api", HOUR).take("a"))).source == "down"
            assert limits.let_through == 3

        async def granted(limits):
            assert await value(limits.limit("api", HOUR).take("a"))
            assert await value(limits.limit("api", HOUR).wait("a", 1))

        with redis.Redis(unix_socket_path=socket, password="secret") as client:
            client.execute_command("ACL SETUSER reader on >x ~* +rl.peek")
        for on_down, test in (("open", let_through), ("closed", denied)):
            Both(kind, unix_socket_path=socket).run(test, on_down=on_down)
            Both(kind, unix_socket_path=socket, password="wrong").run(test, on_down=on_down)
            Both(kind, unix_socket_path=socket, username="reader", password="x").run(test, on_down=on_down)
        Both(kind, unix_socket_path=socket, password="secret").run(granted)
        Both(kind, unix_socket_path=socket, password="secret", protocol=3, db=3).run(granted)


async def eventually_granted(limit, key="a"):
    """The decision after an outage."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await value(limit.take(key))
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


@KINDS
def test_a_server_that_restarts(kind, tmp_path):
    """Connections that broke while nobody used them are noticed before a call is sent on them."""
    with folder() as home:
        socket = f"{home}/s"
        arguments = ("--port", 0, "--unixsocket", socket)

        async def test(limits):
            limit = limits.limit("api", HOUR)
            with running(home, *arguments, up={"unix_socket_path": socket}):
                assert await value(limit.take("a"))
                assert await value(limit.wait("a", 1))
            # Nobody has asked meanwhile, so nobody knows that the server was down.
            with running(home, *arguments, up={"unix_socket_path": socket}):
                assert await value(limit.take("a"))
            # A connection counts as unused only after a millisecond, and a killed server may be gone sooner.
            await asyncio.sleep(0.01)
            with pytest.raises(Unavailable) as raised:
                await value(limit.take("a"))
            assert not raised.value.sent
            with running(home, *arguments, up={"unix_socket_path": socket}):
                assert await eventually_granted(limit)

        Both(kind, unix_socket_path=socket).run(test)


# Threads, processes, connections


def test_threads_share_the_connections(socket, client):
    limits = limits_of(redis.Redis(unix_socket_path=socket), max_connections=3)
    limit = limits.limit("api", HOUR)
    before = len(client.client_list())
    granted = []

    def work():
        for _ in range(100):
            granted.append(limit.take("a").granted)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 1000 and len(granted) == 2000
    assert len(client.client_list()) <= before + 3
    limits.close()
    eventually(lambda: len(client.client_list()) == before)


def test_tasks_share_the_connections(socket, client):
    async def main():
        before = len(client.client_list())
        other = redis.asyncio.Redis(unix_socket_path=socket)
        limits = limits_of(other, max_connections=3)
        limit = limits.limit("api", HOUR)
        decisions = await asyncio.gather(*(limit.take("a") for _ in range(1500)))
        assert sum(decision.granted for decision in decisions) == 1000
        assert len(client.client_list()) <= before + 3
        # Calls that wait have connections of their own, so that they do not stop the others.
        await limits.limit("one", Gcra("1/h")).take("a")
        waits = [asyncio.ensure_future(limits.limit("one", Gcra("1/h")).wait("a", 7200)) for _ in range(10)]
        await asyncio.to_thread(eventually, lambda: waiting(client) == 10)
        assert await limits.limit("other", HOUR).take("b")
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await limits.aclose()
        await other.aclose()
        await asyncio.to_thread(eventually, lambda: len(client.client_list()) == before)

    asyncio.run(main())


def test_a_process_that_was_forked(socket, client):
    limits = limits_of(redis.Redis(unix_socket_path=socket))
    limit = limits.limit("api", HOUR)
    assert limit.take("a")

    def child():
        os._exit(0 if all(limit.take("a") for _ in range(100)) else 1)

    children = [multiprocessing.get_context("fork").Process(target=child) for _ in range(3)]
    for process in children:
        process.start()
    assert all(limit.take("a") for _ in range(100))
    for process in children:
        process.join()
    assert [process.exitcode for process in children] == [0, 0, 0]
    assert used(client, "api:a") == 401


# A cluster


def test_a_cluster_whose_primary_fails():
    """Blocks that began before settle at the replica that takes over, once. New calls fail until it has, and then find it."""
    with running_cluster(replicas=1) as cluster:
        dead = cluster.ports[0]
        begun, failed = threading.Barrier(3, timeout=120), threading.Event()

        async def test(limits):
            limit, runs = limits.limit("api", Slide("1000/h")), limits.limit("runs", Lease(5, 300))
            tags = [f"{{{number}}}" for number in range(50)]
            assert all([await value(limit.take(tag)) for tag in tags])
            async with contextlib.AsyncExitStack() as stack:
                for tag in tags[:20]:
                    call = await stack.enter_async_context(block(limits.admit([(runs, tag), (limit, tag)], 100)))
                    call.used = 2
                await asyncio.to_thread(begun.wait)
                assert await asyncio.to_thread(failed.wait, 60)
                for tag in tags:
                    await eventually_granted(limit, tag)
                for tag in tags:
                    async with block(limit.charge(tag, 10, wait=5)) as charge:
                        charge.used = 4
                for tag in tags:
                    async with block(limits.admit([(runs, tag), (limit, tag)], 10, wait=5)) as call:
                        call.used = 3
            for number, tag in enumerate(tags):
                assert (await value(limit.peek(tag))).remaining == 1000 - 2 - 4 - 3 - (2 if number < 20 else 0)
                assert (await value(runs.peek(tag))).remaining == 5
                assert await value(limit.take(tag))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            kinds = (redis.RedisCluster, redis.asyncio.RedisCluster)
            runs = [
                pool.submit(Both(kind, host="127.0.0.1", port=cluster.ports[1]).run, test, timeout=60, prefix=f"{number}:")
                for number, kind in enumerate(kinds)
            ]
            try:
                begun.wait()
                with cluster.node(dead) as node:
                    node.execute_command("WAIT", 1, 10_000)
                cluster.processes[dead].kill()
                cluster.processes[dead].wait()
            finally:
                failed.set()
                begun.abort()
            for run in runs:
                run.result()


class Move:
    """A slot of a cluster, and the node that it moves to."""

    def __init__(self, cluster, key):
        self.cluster = cluster
        with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as client:
            client.flushall(target_nodes="primaries")
            self.slot = client.keyslot(key)
        self.source = next(port for port in cluster.ports if self.owner(port) == port)
        self.target = next(port for port in cluster.ports if port != self.source)

    def owner(self, asked):
        with self.cluster.node(asked) as node:
            for begin, end, owner, *_ in node.execute_command("CLUSTER SLOTS"):
                if begin <= self.slot <= end:
                    return int(owner[1])

    def begin(self, source, target):
        with self.cluster.node(source) as here, self.cluster.node(target) as there:
            there.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", here.execute_command("CLUSTER MYID"))
            here.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", there.execute_command("CLUSTER MYID"))

    def end(self, source, target):
        with self.cluster.node(source) as here, self.cluster.node(target) as there:
            id = there.execute_command("CLUSTER MYID")
            there.execute_command("CLUSTER SETSLOT", self.slot, "NODE", id)
            here.execute_command("CLUSTER SETSLOT", self.slot, "NODE", id)

    def back(self):
        for port in self.cluster.ports:
            with self.cluster.node(port) as node:
                node.flushall()
        if self.owner(self.target) == self.target:
            self.begin(self.target, self.source)
        self.end(self.target, self.source)
        eventually(lambda: all(self.owner(port) == self.source for port in self.cluster.ports))


@CLUSTERS
def test_a_slot_that_moves(kind, cluster):
    move = Move(cluster, "api:a")
    with cluster.node(move.source) as here:
        moved = lambda: int(
            str(here.info("errorstats").get("errorstat_MOVED", "0")).strip("{}").rpartition(" ")[2].rpartition("=")[2]
        )

        async def test(limits):
            limit = limits.limit("api", HOUR)
            assert await value(limit.take("a"))
            move.begin(move.source, move.target)
            # The key is still here; then it is there, and the node here answers ASK.
            assert (await value(limit.take("a"))).remaining == 998
            here.execute_command("MIGRATE", "127.0.0.1", move.target, "api:a", 0, 10_000)
            assert (await value(limit.take("a"))).remaining == 997
            before = moved()
            move.end(move.source, move.target)
            assert (await value(limit.take("a"))).remaining == 996
            assert (await value(limit.take("a"))).remaining == 995
            assert (await value(limit.wait("a", 5))).remaining == 994
            # One call was redirected. From then on, calls go to the new node.
            assert moved() == before + 1

        try:
            Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)
        finally:
            move.back()


@KINDS
def test_a_wait_without_an_id_that_a_failover_ends_goes_on(kind, socket, client):
    """The call gets UNBLOCKED, and then READONLY each time that it calls again, until the server is a primary."""
    before = refused(client)

    async def test(limits):
        limit = limits.limit("api", Fixed("1/h"))
        assert await value(limit.take("a"))

        def change():
            eventually(lambda: waiting(client) == 1)
            client.replicaof("127.0.0.1", 1)
            eventually(lambda: refused(client) >= before + 2)
            client.replicaof("NO", "ONE")
            eventually(lambda: waiting(client) == 1)
            client.execute_command("RL.FIXED", "api:a", 1, 3600, "REFUND", 1)

        thread = threading.Thread(target=change)
        thread.start()
        assert await value(limit.wait("a", "2h"))
        thread.join()
        assert used(client, "api:a") == 1

    try:
        Both(kind, unix_socket_path=socket).run(test)
    finally:
        client.replicaof("NO", "ONE")


@CLUSTERS
@pytest.mark.parametrize("has_id", [True, False])
def test_a_call_that_waits_while_its_slot_moves(kind, cluster, has_id):
    """The server answers TRYAGAIN, and the call waits at the slot's new node."""
    move = Move(cluster, "jobs:a")
    with cluster.node(move.source) as here, cluster.node(move.target) as there:
        here.execute_command(*("RL.LEASE jobs:a 1 600 ID other" if has_id else "RL.FIXED jobs:a 1 3600").split())

        def work():
            eventually(lambda: waiting(here) == 1)
            move.begin(move.source, move.target)
            here.execute_command("MIGRATE", "127.0.0.1", move.target, "jobs:a", 0, 10_000)
            move.end(move.source, move.target)
            eventually(lambda: waiting(there) == 1)
            there.execute_command(*("RL.RELEASE jobs:a other" if has_id else "RL.FIXED jobs:a 1 3600 REFUND 1").split())

        async def test(limits):
            thread = threading.Thread(target=work)
            thread.start()
            if has_id:
                async with block(limits.limit("jobs", Lease(1, 600)).hold("a", wait=120)):
                    assert inspect(there, "jobs:a")["held"] == 1
            else:
                assert await value(limits.limit("jobs", Fixed("1/h")).wait("a", "2h"))
                assert inspect(there, "jobs:a")["used"] == 1
            thread.join()

        try:
            Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)
        finally:
            move.back()


@CLUSTERS
def test_keys_with_several_slots(kind, cluster):
    from redis_rl import InvalidKey

    async def test(limits):
        with pytest.raises(InvalidKey, match="hash tag"):
            await value(limits.all([(limits.limit("a", HOUR), "x", 1), (limits.limit("b", HOUR), "y", 1)]))

    Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)


# TLS


@KINDS
def test_tls(kind):
    with folder() as home, contextlib.ExitStack() as stack:
        tls = certificate(home)
        port = free_ports(1)[0]
        options = ["--bind", "127.0.0.1", "--tls-port", port, *tls_options(home)]
        stack.enter_context(running(home / "s", *options, up={"port": port, **tls}))

        async def test(limits):
            limit = limits.limit("api", Gcra("5/s", burst=1))
            for _ in range(3):
                assert await value(limit.wait("a", 30))
                async with block(limit.charge("b", 1, wait=30)):
                    pass
            with redis.Redis(port=port, **tls) as client:
                # Its own connection, and one for calls that wait and one for others at most.
                assert len(client.client_list()) <= 4

        Both(kind, host="127.0.0.1", port=port, **tls).run(test)


def test_a_cluster_with_tls():
    """Each call goes to the node of its key, over TLS; a client that does not trust the certificate gets no decision."""
    with folder() as home:
        tls = certificate(home)
        options = [*tls_options(home), "--tls-cluster", "yes", "--tls-replication", "yes"]
        with running_cluster(options=options, login=tls) as cluster:

            async def test(limits):
                limit = limits.limit("api", HOUR)
                for number in range(20):
                    assert (await value(limit.take(str(number)))).granted == 1
                    async with block(limit.charge(str(number), 10, wait=5)) as charge:
                        charge.used = 4
                    assert (await value(limit.peek(str(number)))).remaining == 995

            for kind in (redis.RedisCluster, redis.asyncio.RedisCluster):
                Both(kind, host="127.0.0.1", port=cluster.ports[0], **tls).run(test)
                for port in cluster.ports:
                    with cluster.node(port) as node:
                        assert node.info("commandstats")["cmdstat_rl.fixed"]["calls"] > 0
                        assert "errorstat_MOVED" not in node.info("errorstats")
                        node.flushall()


# Decorators


def test_decorators(socket):
    limits = limits_of(redis.Redis(unix_socket_path=socket))
    limit = limits.limit("api", Fixed("2/h"))

    @limit.admit("user:{user_id}")
    def show(user_id, page=1):
        return user_id, page

    assert show(1) == (1, 1) and show(user_id=1, page=2) == (1, 2)
    with pytest.raises(RateLimited) as raised:
        show(1)
    assert raised.value.retry_after > 3000
    assert show(2) == (2, 1)
    assert show.__name__ == "show"
    with pytest.raises(TypeError):
        limit.admit("a")(main)


async def main():
    pass


def test_decorators_for_asyncio(socket):
    async def run():
        client = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(client) as limits:
            limit = limits.limit("api", Fixed("2/h"))

            @limit.admit("user:{user_id}", wait=1)
            async def show(user_id):
                return user_id

            assert await show(1) == 1 and await show(user_id=1) == 1
            with pytest.raises(RateLimited):
                await show(1)
            async with limit.admit("b") as decision:
                assert decision.granted == 1
            with pytest.raises(TypeError):
                limit.admit("a")(lambda: None)
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("key", ["{nope}", "{}", "{0}", "a{user_id", "{user_id}:{nope.id}"])
def test_a_decorator_names_an_argument_of_its_function(key, socket):
    def show(user_id):
        pytest.fail("was called")

    async def show_async(user_id):
        pytest.fail("was called")

    for client, function in ((redis.Redis, show), (redis.asyncio.Redis, show_async)):
        guard = limits_of(client(unix_socket_path=socket)).limit("show", HOUR).admit(key)
        with pytest.raises(InvalidKey, match="format|no argument"):
            guard(function)


@KINDS
def test_settle_and_release_decide_nothing(kind, dead_socket):
    """So they are errors in both modes."""

    async def test(limits):
        limit, jobs = limits.limit("api", HOUR), limits.limit("jobs", Lease(1, 60))
        calls = (lambda: limit.settle("a", "id", 1), lambda: limit.release("a", "id"), lambda: jobs.renew("a", "id"))
        for call in calls:
            with pytest.raises(Unavailable):
                await value(call())
        assert (await value(limit.take("a"))).source == "down"

    Both(kind, unix_socket_path=dead_socket).run(test, on_down="open", timeout=0.1)


@KINDS
def test_a_server_without_the_module(kind, caplog):
    with running_server(module=None) as (_, socket):

        async def closed(limits):
            with pytest.raises(NoModule, match="no module redis-rl.*loadmodule"):
                await value(limits.limit("api", HOUR).take("a"))

        async def let_through(limits):
            assert (await value(limits.limit("api", HOUR).take("a"))).source == "down"
            assert "loadmodule" in caplog.text

        Both(kind, unix_socket_path=socket).run(closed)
        Both(kind, unix_socket_path=socket).run(let_through, on_down="open")


@KINDS
def test_a_key_of_something_else_is_an_error_in_both_modes(kind, socket, client):
    client.rpush("api:list", "x")

    async def test(limits):
        api = limits.limit("api", HOUR)
        with pytest.raises(WrongType, match="^'api:list': "):
            await value(api.take("list"))
        with pytest.raises(WrongType, match="^'api:other' or 'api:list': "):
            await value(limits.all([(api, "other", 1), (api, "list", 1)]))

    Both(kind, unix_socket_path=socket).run(test, on_down="open")
