"""Units that a process has fetched, and denials that it repeats. The server counts the calls and what it has charged."""

import asyncio
import time

import pytest
import redis
import redis.asyncio

from conftest import PATIENCE, eventually, inspect
from helpers import CLUSTERS, KINDS, Both, limits_of, used, value
from redis_rl import (
    Bucket,
    Closed,
    Fixed,
    Gcra,
    InvalidCost,
    InvalidLimit,
    Lease,
    RateLimited,
    Slide,
    Unavailable,
)


def calls(client, command):
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def ids(client, key):
    return (inspect(client, key) or {}).get("ids", 0)


async def until(condition):
    await asyncio.to_thread(eventually, condition)


async def both(kind, *calls):
    """The results of calls that are made at the same time."""
    if kind is redis.Redis:
        return await asyncio.gather(*(asyncio.to_thread(call) for call in calls))
    return await asyncio.gather(*(call() for call in calls))


async def closed(thing):
    await value(thing.aclose() if hasattr(thing, "aclose") else thing.close())


# Denials that are repeated


@KINDS
def test_a_denial_is_repeated(kind, socket, client):
    async def test(limits):
        limit = limits.limit("api", Fixed("10/h"))
        assert (await value(limit.take("a", 9))).granted == 9
        first = await value(limit.take("a", 2))
        assert not first and first.source == "server"
        asked = calls(client, "rl.fixed")
        for _ in range(2):
            again = await value(limit.take("a", 2))
            assert (again.granted, again.remaining, again.limit, again.source) == (0, 1, 10, "repeated")
            assert first.wait_ms - 1000 <= again.wait_ms <= first.wait_ms and "Retry-After" in again.headers()
        with pytest.raises(RateLimited):
            manager = limit.admit("a", 2)
            await value(manager.__aenter__() if hasattr(manager, "__aenter__") else manager.__enter__())
        assert calls(client, "rl.fixed") == asked
        # Another cost is asked, because its wait may differ, and so are other keys, other calls, and another limit object.
        assert (await value(limit.take("a", 3))).source == "server"
        assert (await value(limit.take("a", 11))).wait is None
        assert await value(limit.take("a", 1)) and await value(limit.take("b", 2))
        assert not await value(limit.take("a", 2, id="one"))
        assert not await value(limits.limit("api", Fixed("10/h")).take("a", 2))
        assert calls(client, "rl.fixed") == asked + 6

    Both(kind, unix_socket_path=socket).run(test, repeat_denials=1)


@KINDS
def test_a_denial_is_asked_again_after_its_time_and_after_each_change(kind, socket, client):
    async def denied(limit):
        """A denial that was repeated."""
        while True:
            decision = await value(limit.take("a"))
            assert not decision
            if decision.source == "repeated":
                return

    async def test(limits):
        limit = limits.limit("api", Fixed("10/h"))
        await value(limit.take("a", 10, id="one"))
        await denied(limit)
        # Another client gives back: this is noticed when the time is over.
        client.execute_command("RL.FIXED", "api:a", 10, "1h", "REFUND", 1)
        asked = calls(client, "rl.fixed")
        deadline = time.monotonic() + 60
        while not await value(limit.take("a")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        # All calls but the last were repeated in the process, or denied by nobody.
        assert calls(client, "rl.fixed") == asked + 1
        for change in (
            lambda: limit.refund("a", 1),
            lambda: limit.settle("a", "one", 8),
            lambda: limit.release("a", "one"),
        ):
            await denied(limit)
            await value(change())
            assert (await value(limit.take("a"))).source == "server"
            await value(limit.force("a", 10))

    Both(kind, unix_socket_path=socket).run(test, repeat_denials=1)


@KINDS
def test_no_denial_is_repeated_by_default(kind, socket, client):
    async def test(limits):
        limit = limits.limit("api", Fixed("1/h"))
        assert [(await value(limit.take("a"))).source for _ in range(3)] == ["server"] * 3

    Both(kind, unix_socket_path=socket).run(test)


# Wallets


@KINDS
@pytest.mark.parametrize("policy", [Fixed("1000/h"), Slide("1000/h"), Gcra("1000/h"), Bucket("1000/h")], ids=repr)
def test_a_wallet_asks_seldom(kind, policy, socket, client):
    command = f"rl.{policy.algorithm.lower()}"
    asked = calls(client, command)

    async def test(limits):
        wallet = limits.wallet(limits.limit("api", policy), batch=100, idle=600)
        decisions = [await value(wallet.take("a")) for _ in range(250)]
        assert all(decisions) and [decision.granted for decision in decisions] == [1] * 250
        assert decisions[0].limit == 1000 and decisions[0].remaining == 999 and decisions[-1].remaining in (750, 751)
        assert calls(client, command) == asked + 3 and used(client, "api:a") == 300
        # More than is left, and more than a batch.
        assert (await value(wallet.take("a", 60))).granted == 60 and (await value(wallet.take("a", 170))).granted == 170
        await closed(wallet)
        assert used(client, "api:a") in (480, 479)
        with pytest.raises(Closed):
            await value(wallet.take("a"))
        assert ids(client, "api:a") == 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_wallet_spends_what_is_there(kind, socket, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("10/h")), batch=100, idle=600)
        assert all([await value(wallet.take("a", 3)) for _ in range(3)])
        denied = await value(wallet.take("a", 2))
        assert not denied and denied.remaining == 1 and 0 < denied.wait <= 3600
        assert await value(wallet.take("a")) and not await value(wallet.take("a"))
        assert used(client, "api:a") == 10
        never = await value(wallet.take("a", 11))
        assert not never and never.wait is None
        with pytest.raises(InvalidCost):
            await value(wallet.take("a", 0))
        none = limits.wallet(limits.limit("none", Fixed("0/h")))
        assert (await value(none.take("a"))).wait is None
        await closed(wallet)
        await closed(none)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_what_is_left_is_given_back(kind, socket, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=0.2)
        for _ in range(3):
            assert await value(wallet.take("a", 7))
        assert used(client, "api:a") == 100
        await until(lambda: used(client, "api:a") == 21)
        await until(lambda: not wallet._purses)
        assert await value(wallet.take("a")) and used(client, "api:a") == 121
        await closed(wallet)
        assert used(client, "api:a") == 22

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_units_are_not_spent_after_their_window(kind, socket, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("100/1s")), batch=100, idle=600)
        for window in range(3):
            assert (await value(wallet.take("a"))).granted == 1
            # No unit of the last window is left in the next one.
            assert max(purse.left(time.monotonic()) for purse in wallet._purses.values()) <= 99
            batch = wallet._purses[b"api:a"].batches[-1]
            assert batch.ends <= time.monotonic() + 1
            await until(lambda: client.exists("api:a") == 0)
            assert all(purse.left(time.monotonic()) == 0 for purse in wallet._purses.values())
        await closed(wallet)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_wallet_whose_replies_are_lost(kind, proxy, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
        proxy.lose("reply", "UPTO", 3)
        assert await value(wallet.take("a"))
        assert used(client, "api:a") == 100
        proxy.lose("reply", "RL.SETTLE", 2)
        await closed(wallet)
        assert used(client, "api:a") == 1 and not proxy.to_lose

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_a_wallet_without_a_server(kind, dead_socket):
    async def closed_mode(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")))
        with pytest.raises(Unavailable):
            await value(wallet.take("a"))
        await closed(wallet)

    async def open_mode(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")))
        decision = await value(wallet.take("a", 3))
        assert decision.granted == 3 and decision.source == "down"
        await closed(wallet)

    Both(kind, unix_socket_path=dead_socket).run(closed_mode, timeout=0.3)
    Both(kind, unix_socket_path=dead_socket).run(open_mode, timeout=0.3, on_down="open")


def test_a_wallet_is_for_rates(socket):
    limits = limits_of(redis.Redis(unix_socket_path=socket))
    with pytest.raises(InvalidLimit):
        limits.wallet(limits.limit("jobs", Lease(1, 1)))
    with pytest.raises(InvalidCost):
        limits.wallet(limits.limit("api", Fixed("1/s")), batch=0)
    with pytest.raises(InvalidLimit):
        limits.wallet(limits.limit("api", Fixed("1/s")), idle=0)


def test_tasks_never_spend_more_than_the_server_has_charged(socket, client):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(other) as limits:
            limit = limits.limit("api", Fixed("5000/h"))
            asked = calls(client, "rl.fixed")
            # On a busy machine, a shorter idle time would give units back between two calls, and the other wallet was denied.
            async with limits.wallet(limit, batch=70, idle=600) as one, limits.wallet(limit, batch=70, idle=600) as two:
                decisions = await asyncio.gather(*(wallet.take("a") for wallet in (one, two) for _ in range(4000)))
                # One fetch at a time for each wallet, for all calls that wait.
                assert sum(decision.granted for decision in decisions) == 5000
                assert calls(client, "rl.fixed") - asked <= 20
        await other.aclose()

    asyncio.run(main())
    assert used(client, "api:a") == 5000


def test_a_cancelled_fetch(proxy, client):
    """Others that wait for the fetch of a task that is cancelled fetch by themselves. What it fetched is given back."""

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=proxy.server_address)
        limits = limits_of(other)
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
        proxy.lose("reply", "UPTO", 1)
        first = asyncio.ensure_future(wallet.take("a"))
        await asyncio.to_thread(eventually, lambda: proxy.lost)
        second = asyncio.ensure_future(wallet.take("a"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).granted == 1
        await asyncio.to_thread(eventually, lambda: used(client, "api:a") == 100)
        await wallet.aclose()
        assert used(client, "api:a") == 1
        await limits.aclose()
        await other.aclose()

    asyncio.run(main())


def test_a_fetch_that_is_dropped(socket, client):
    """A coroutine that Python removes before its end waits for nothing any more. What it fetched is given back."""

    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        limits = limits_of(other)
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
        assert await wallet.take("a", 100)
        await asyncio.sleep(0)
        dropped = wallet.take("a")
        dropped.send(None)
        # Before its end, this raises RuntimeError if the coroutine waits.
        dropped.close()
        assert await wallet.take("a")
        await limits.aclose()
        await other.aclose()

    asyncio.run(main())
    assert used(client, "api:a") == 101


@CLUSTERS
def test_a_wallet_in_a_cluster(kind, cluster):
    with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as other:
        other.flushall(target_nodes="primaries")

        async def test(limits):
            wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=50, idle=600)
            for number in range(20):
                assert await value(wallet.take(str(number), 3))
            await closed(wallet)
            for number in range(20):
                assert inspect(other, f"api:{number}")["used"] == 3

        Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)


@KINDS
@pytest.mark.parametrize("policy", [Fixed("1000/d"), Slide("1000/d"), Gcra("1000/d"), Bucket("1000/d")], ids=repr)
def test_batches_leave_no_ids_on_the_key(kind, policy, socket, client):
    async def test(limits):
        limit = limits.limit("api", policy)
        # Of somebody else.
        await value(limit.take("a", id="open"))
        wallet = limits.wallet(limit, batch=2, idle=600)
        for _ in range(300):
            assert await value(wallet.take("a"))
        # The batch of now, the one before, and the charge of somebody else.
        assert ids(client, "api:a") <= 3
        await closed(wallet)
        assert ids(client, "api:a") == 1 and 300 <= used(client, "api:a") <= 301
        assert await value(limit.release("a", "open"))

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_cost_above_the_capacity_drains_nothing(kind, socket, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Gcra("1000/h", burst=10)), batch=100)
        never = await value(wallet.take("a", 11))
        assert not never and never.wait is None and used(client, "api:a") == 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_call_that_is_denied_keeps_no_units_from_others(kind, socket, client):
    """What does not suffice for a call is given back at once, and not when it is idle."""

    async def test(limits):
        limit = limits.limit("api", Fixed("100/h"))
        one, other = (limits.wallet(limit, batch=batch, idle=3600) for batch in (100, 60))
        assert await value(one.take("a", 80)) and not await value(one.take("a", 80))
        assert used(client, "api:a") == 80
        assert await value(other.take("a", 20))
        # The server has too few.
        await value(limit.refund("a", 50))
        denied = await value(one.take("a", 80))
        assert not denied and denied.remaining == 50 and used(client, "api:a") == 50
        # A cost above the batch needs the units that are here, too.
        assert await value(other.take("a", 10)) and used(client, "api:a") == 100
        await value(limit.refund("a", 50))
        assert await value(other.take("a", 90))
        # A call for fewer that waits for the same units gets them.
        await value(limit.refund("a", 20))
        many, few = await both(kind, lambda: one.take("a", 80), lambda: one.take("a", 20))
        assert not many and few and used(client, "api:a") == 100
        await closed(one)
        await closed(other)
        assert used(client, "api:a") == 100 and ids(client, "api:a") == 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_wallet_forgets_keys_that_were_only_denied(kind, socket, client):
    async def test(limits):
        limit = limits.limit("api", Fixed("1/h"))
        await value(limit.take("a"))
        wallet = limits.wallet(limit, idle=0.2)
        assert not await value(wallet.take("a")) and wallet._purses
        await until(lambda: not wallet._purses)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_units_that_can_t_be_given_back_now_are_given_back_later(kind, proxy, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=0.2)
        assert await value(wallet.take("a"))
        proxy.lose("request", "RL.SETTLE", 40)
        await until(lambda: used(client, "api:a") == 1)
        assert proxy.lost and ids(client, "api:a") == 0

    Both(kind, unix_socket_path=proxy.server_address).run(test, timeout=0.3, connect_timeout=0.3)


async def fetching(kind, proxy, wallet):
    """A task that takes a unit. The proxy has its call that fetches a batch."""
    task = asyncio.ensure_future(asyncio.to_thread(wallet.take, "a") if kind is redis.Redis else wallet.take("a"))
    await until(lambda: any(b"UPTO" in each for each in proxy.seen))
    return task


@KINDS
def test_a_wallet_that_is_closed_while_it_fetches(kind, proxy, client):
    """What arrives afterwards is given back."""

    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
        proxy.delay("UPTO")
        task = await fetching(kind, proxy, wallet)
        await closed(wallet)
        proxy.go_on.set()
        with pytest.raises(Closed):
            await task
        await until(lambda: used(client, "api:a") == 0)
        assert ids(client, "api:a") == 0

    Both(kind, unix_socket_path=proxy.server_address).run(test)


@KINDS
def test_limits_that_are_closed_while_a_wallet_fetches(kind, proxy, client):
    """The reply is lost, and the call is not sent again. What the server has granted is given back."""

    async def test(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
        proxy.delay("UPTO")
        proxy.lose("reply", "UPTO")
        task = await fetching(kind, proxy, wallet)
        await closed(limits)
        proxy.go_on.set()
        with pytest.raises(Closed):
            await task
        assert proxy.lost
        await until(lambda: used(client, "api:a") == 0)
        assert ids(client, "api:a") == 0

    Both(kind, unix_socket_path=proxy.server_address).run(test)
