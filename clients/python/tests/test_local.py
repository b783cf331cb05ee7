"""Denials that a process remembers, and units that it has fetched. The server counts the calls and what it has charged."""

import asyncio
import multiprocessing
import threading
import time

import pytest
import redis
import redis.asyncio

from conftest import PATIENCE, eventually, inspect
from redis_rl import Bucket, Down, Fixed, Gcra, InvalidCost, InvalidLimit, Lease, Limits, Slide
from redis_rl._decision import decision_of
from redis_rl._local import Denials
from helpers import CLUSTERS, KINDS, Both, used, value


def calls(client, command):
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


async def until(condition):
    await asyncio.to_thread(eventually, condition)


async def closed(thing):
    await value(thing.aclose() if hasattr(thing, "aclose") else thing.close())


# Denials


@KINDS
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_denial_is_remembered(kind, protocol, socket, client):
    async def test(limits):
        limit = limits.cached(limits.limit("api", Fixed("10/h")))
        assert (await value(limit.take("a", 9))).granted == 9
        first = await value(limit.take("a", 2))
        assert not first and first.remaining == 1
        asked = calls(client, "rl.fixed")
        for _ in range(100):
            again = await value(limit.take("a", 2))
            assert not again and again.remaining == 1 and again.limit == 10
            assert first.wait_ms - 60_000 <= again.wait_ms <= first.wait_ms and again.reset_ms <= first.reset_ms
        # Higher costs are denied, too, and those above the capacity for ever.
        assert not await value(limit.take("a", 5)) and (await value(limit.take("a", 11))).wait is None
        assert calls(client, "rl.fixed") == asked
        # A lower cost is asked, and so are other keys.
        assert await value(limit.take("a", 1)) and await value(limit.take("b", 1))
        assert calls(client, "rl.fixed") == asked + 2
        await closed(limit)

    Both(kind, unix_socket_path=socket, protocol=protocol).run(test)


@KINDS
def test_a_change_of_the_key_drops_its_denial(kind, socket, client):
    async def test(limits):
        limit = limits.cached(limits.limit("api", Slide("10/h")))
        changes = (
            lambda: client.delete("api:a"),
            lambda: client.execute_command("RL.SLIDE", "api:a", 10, "1h", "REFUND", 5),
            lambda: client.rename("api:a", "api:b"),
            lambda: client.flushall(),
            lambda: client.pexpire("api:a", 1) and time.sleep(0.05),
        )
        for change in changes:
            client.delete("api:a")
            await until(lambda: not len(limit._denials))
            assert await value(limit.take("a", 10)) and not await value(limit.take("a"))
            assert len(limit._denials) == 1
            change()
            await until(lambda: not len(limit._denials))
            assert await value(limit.take("a"))
        await closed(limit)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_denial_ends_with_its_wait(kind, socket, client):
    async def test(limits):
        limit = limits.cached(limits.limit("api", Gcra("2/s")))
        assert await value(limit.take("a", 2))
        granted = 0
        begin = time.monotonic()
        while granted < 3:
            granted += (await value(limit.take("a"))).granted
            await asyncio.sleep(0.001)
        # It was asked a few times for each unit, and not at each try.
        assert calls(client, "rl.gcra") < asked + 40
        assert time.monotonic() - begin > 1
        await closed(limit)

    asked = calls(client, "rl.gcra")
    Both(kind, unix_socket_path=socket).run(test)


@KINDS
@pytest.mark.parametrize("which", ["pubsub", "normal"])
def test_a_lost_connection_drops_all_denials(kind, which, socket, client):
    async def test(limits):
        limit = limits.cached(limits.limit("api", Fixed("1/h")))
        for key in "abc":
            assert await value(limit.take(key)) and not await value(limit.take(key))
        assert len(limit._denials) == 3
        if which == "pubsub":
            client.execute_command("CLIENT KILL TYPE pubsub")
        else:
            # The connection that reads the keys: the server forgets what it tracks for it.
            [tracking] = [each for each in client.client_list() if "t" in each["flags"]]
            client.client_kill_filter(_id=tracking["id"])
            assert client.delete("api:b")
        if which == "pubsub" or not hasattr(limit, "aclose"):
            await until(lambda: not len(limit._denials))
        await asyncio.sleep(0)
        asked = calls(client, "rl.fixed")
        assert not await value(limit.take("a"))
        assert calls(client, "rl.fixed") == asked + 1
        if which == "normal":
            assert await value(limit.take("b"))
        # Denials are remembered again.
        while not len(limit._denials):
            assert not await value(limit.take("a"))
            await asyncio.sleep(0.05)
        asked = calls(client, "rl.fixed")
        assert not await value(limit.take("a")) and calls(client, "rl.fixed") == asked
        await closed(limit)

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_user_who_may_not_track(kind, socket, client):
    """Then each call asks the server."""
    client.execute_command("ACL SETUSER plain on >x ~* &* +@all -client|tracking")

    async def test(limits):
        limit = limits.cached(limits.limit("api", Fixed("1/h")))
        assert await value(limit.take("a"))
        for _ in range(5):
            assert not await value(limit.take("a"))
        assert not len(limit._denials)
        await closed(limit)

    asked = calls(client, "rl.fixed")
    Both(kind, unix_socket_path=socket, username="plain", password="x").run(test)
    assert calls(client, "rl.fixed") == asked + 6
    client.execute_command("ACL DELUSER plain")


@CLUSTERS
def test_denials_in_a_cluster(kind, cluster):
    with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as other:
        other.flushall(target_nodes="primaries")

        async def test(limits):
            limit = limits.cached(limits.limit("api", Fixed("1/h")))
            for number in range(20):
                assert await value(limit.take(str(number))) and not await value(limit.take(str(number)))
            assert len(limit._denials) == 20
            for number in range(20):
                other.delete(f"api:{number}")
            await until(lambda: not len(limit._denials))
            for number in range(20):
                assert await value(limit.take(str(number)))
            await closed(limit)

        Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)


def test_at_most_so_many_denials():
    denials = Denials(most=3)
    decision = decision_of([0, 1, 0, 60_000, 60_000], Fixed("1/m"), "api")
    for key in (b"a", b"b", b"c"):
        denials.end(key, denials.begin(key, 1), decision)
    assert denials.find(b"a", 1) is not None
    denials.end(b"d", denials.begin(b"d", 1), decision)
    # The one that was used least recently is forgotten.
    assert denials.find(b"b", 1) is None and all(denials.find(key, 1) is not None for key in (b"a", b"c", b"d"))
    # A key that changes while it is read is not remembered.
    denial = denials.begin(b"e", 1)
    denials.take_message([b"message", b"__redis__:invalidate", [b"e"]])
    denials.end(b"e", denial, decision)
    assert denials.find(b"e", 1) is None
    # Nor is one whose reading fails meanwhile.
    denial = denials.begin(b"e", 1)
    denials.take_message([b"message", b"__redis__:invalidate", None])
    denials.end(b"e", denial, None)
    assert len(denials) == 0


def test_threads_share_denials(socket, client):
    limits = Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE)
    limit = limits.cached(limits.limit("api", Fixed("50/h")))
    granted = []

    def work():
        for _ in range(200):
            granted.append(limit.take("a").granted)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 50 == used(client, "api:a")
    limit.close()
    # Nothing is left that listens.
    eventually(lambda: not [each for each in client.client_list() if int(each["sub"])])


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
        with pytest.raises(InvalidLimit):
            await value(wallet.take("a"))

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
        assert not wallet._wallet.purses
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
            assert max(purse.left(time.monotonic()) for purse in wallet._wallet.purses.values()) <= 99
            batch = wallet._wallet.purses[b"api:a"].batches[-1]
            assert batch.ends <= time.monotonic() + 1
            await until(lambda: client.exists("api:a") == 0)
            assert all(purse.left(time.monotonic()) == 0 for purse in wallet._wallet.purses.values())
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
        with pytest.raises(Down):
            await value(wallet.take("a"))
        await closed(wallet)

    async def open_mode(limits):
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")))
        decision = await value(wallet.take("a", 3))
        assert decision.granted == 3 and not decision.counted
        await closed(wallet)

    Both(kind, unix_socket_path=dead_socket).run(closed_mode, patience=0.3)
    Both(kind, unix_socket_path=dead_socket).run(open_mode, patience=0.3, on_down="open")


def test_a_wallet_is_for_rates(socket):
    limits = Limits(redis.Redis(unix_socket_path=socket))
    with pytest.raises(InvalidLimit):
        limits.wallet(limits.limit("jobs", Lease(1, 1)))
    with pytest.raises(InvalidCost):
        limits.wallet(limits.limit("api", Fixed("1/s")), batch=0)
    with pytest.raises(InvalidLimit):
        limits.wallet(limits.limit("api", Fixed("1/s")), idle=0)


def spend(wallet, count, spent):
    """Takes units until several calls in a row were denied, and adds what was granted to a list."""
    total = denied = 0
    while count and denied < 3:
        cost = 1 + total % 3
        granted = wallet.take("a", cost).granted
        total += granted
        denied = 0 if granted else denied + 1
        count -= 1
    spent.append(total)


def process(socket, threads, results):
    limits = Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE)
    wallet = limits.wallet(limits.limit("api", Fixed("5000/h")), batch=70, idle=0.05)
    spent = []
    workers = [threading.Thread(target=spend, args=(wallet, 10_000, spent)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wallet.close()
    results.put(sum(spent))


def test_threads_and_processes_never_spend_more_than_the_server_has_charged(socket, client):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=process, args=(socket, 6, results)) for _ in range(3)]
    for each in processes:
        each.start()
    spent = [results.get(timeout=120) for _ in processes]
    for each in processes:
        each.join()
    # All is settled: what the server still counts is exactly what was spent.
    assert sum(spent) == used(client, "api:a") and 4990 <= sum(spent) <= 5000


def test_tasks_never_spend_more_than_the_server_has_charged(socket, client):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with Limits(other, patience=PATIENCE) as limits:
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
        limits = Limits(other, patience=PATIENCE)
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


def test_a_process_that_was_forked_spends_nothing_of_its_parent(socket, client):
    limits = Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE)
    wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=100, idle=600)
    assert wallet.take("a")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child():
        decision = wallet.take("a")
        wallet.close()
        queue.put(decision.granted)

    other = context.Process(target=child)
    other.start()
    assert queue.get(timeout=60) == 1
    other.join()
    assert used(client, "api:a") == 101
    wallet.close()
    assert used(client, "api:a") == 2


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
