"""Limits by name: what a policy key says, which an operator changes under the program."""

import asyncio

import pytest
import redis

from conftest import eventually, inspect
from helpers import CLUSTERS, KINDS, Both, block, held, used, value, waiting
from redis_rl import Bucket, Fixed, Gcra, InvalidArgument, InvalidKey, InvalidLimit, Lease, Named, Slide, WrongType

HOUR = Named("policy:api", Fixed("10/h"))


def say(client, rule, name="policy:api"):
    client.execute_command("RL.POLICY", name, *rule.split())


async def until(condition):
    await asyncio.to_thread(eventually, condition)


@KINDS
def test_the_policy_changes_under_the_process(kind, socket, client):
    async def test(limits):
        api = limits.limit("api", HOUR)
        # The default serves.
        assert ((await value(api.take("a"))).limit, inspect(client, "api:a")["algorithm"]) == (10, b"FIXED")
        for rule, limit in (("GCRA 200 1h BURST 20", 20), ("SLIDE 30 1h", 30), ("BUCKET 40 1h", 40), ("FIXED 50 1h", 50)):
            say(client, rule)
            decision = await value(api.take("a"))
            assert (decision.limit, decision.granted, decision.source) == (limit, 1, "server")
            assert decision.headers()["RateLimit-Policy"] == f'"api";q={limit}'
        assert 4 <= used(client, "api:a") <= 5
        assert (await value(api.take_up_to("a", 3))).granted == 3
        assert (await value(api.force("a", 5))).granted == 5 and (await value(api.refund("a", 2))).granted == 2
        assert await value(api.pause("a", 60)) == 60 and not await value(api.take("a"))
        await value(api.resume("a"))
        async with block(api.admit("a", cost=2)) as decision:
            assert decision.limit == 50
        client.delete("policy:api")
        assert (await value(api.take("b"))).limit == 10
        assert (await value(api.take("b", id="x"))).limit == 10 and inspect(client, "api:b")["ids"] == 1
        client.set("policy:api", "no rule")
        with pytest.raises(InvalidArgument, match="policy key 'policy:api'"):
            await value(api.take("a"))
        client.delete("policy:api")
        client.lpush("policy:api", "x")
        with pytest.raises(WrongType, match="policy key 'policy:api' holds a list"):
            await value(api.take("a"))

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_overrides(kind, socket, client):
    calls = []

    def overrides(key):
        calls.append(key)
        return [f"policy:{key}", b"policy:all"]

    async def test(limits):
        api = limits.limit("api", Named("policy:api", Fixed("10/h"), overrides))
        say(client, "FIXED 20 1h")
        assert (await value(api.take("acme"))).limit == 20
        say(client, "FIXED 30 1h", "policy:all")
        assert (await value(api.take("acme"))).limit == 30
        say(client, "FIXED 40 1h", "policy:acme")
        assert [(await value(api.take(key))).limit for key in ("acme", b"acme", 42)] == [40, 40, 30]
        assert calls == ["acme"] * 4 + ["42"]
        say(client, "FIXED 50 1h", b"policy:\xff")
        assert (await value(api.take(b"\xff"))).limit == 50
        for wrong in (lambda key: "policy:a", lambda key: ["p"] * 16):
            with pytest.raises(InvalidLimit, match="at most 15 names"):
                await value(limits.limit("api", Named("policy:api", Fixed("10/h"), wrong)).take("a"))

    Both(kind, unix_socket_path=socket, protocol=3).run(test, prefix="shop:")


@KINDS
@pytest.mark.parametrize("rule", ["", "SLIDE 10 1h"], ids=["default", "policy"])
def test_charge_and_settle(kind, rule, socket, client):
    async def test(limits):
        api = limits.limit("api", HOUR)
        if rule:
            say(client, rule)
        async with block(api.charge("a", 5)) as charge:
            charge.used = 3
        assert used(client, "api:a") == 3
        # The server does not know the id any more: what is missing is charged by the policy key.
        async with block(api.charge("a", 2)) as charge:
            client.execute_command("RL.RELEASE", "api:a", charge.id)
            charge.used = 4
        assert used(client, "api:a") == 5
        await value(api.take("a", 2, id="x"))
        assert (await value(api.settle("a", "x", 1))).granted == 1 and used(client, "api:a") == 6
        await value(api.take("a", 2, id="y"))
        assert await value(api.release("a", "y")) and used(client, "api:a") == 6

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
@pytest.mark.parametrize("rule", ["", "BUCKET 5 1s"], ids=["default", "policy"])
def test_waits(kind, rule, socket, client):
    async def test(limits):
        api = limits.limit("api", Named("policy:api", Gcra("5/s")))
        if rule:
            say(client, rule)
        assert await value(api.take("a", 5))
        call = asyncio.create_task(asyncio.to_thread(api.wait, "a", 60, 5) if kind is redis.Redis else api.wait("a", 60, 5))
        await until(lambda: waiting(client) == 1)
        assert (await call).granted == 5
        booked = await value(api.reserve("a", 60, 5))
        assert booked.granted == 5 and booked.wait > 0

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_a_wallet(kind, socket, client):
    async def test(limits):
        wallet = limits.wallet(limits.limit("api", HOUR), batch=100, idle=600)
        assert [(await value(wallet.take("a"))).granted for _ in range(11)] == [1] * 10 + [0]
        say(client, "SLIDE 300 1h")
        # More than the default allows.
        assert (await value(wallet.take("b", 50))).source == "wallet" and used(client, "api:b") == 100
        assert (await value(wallet.take("b", 250))).granted == 250
        denied = await value(wallet.take("b", 2))
        assert not denied and denied.wait_ms > 0 and used(client, "api:b") == 300
        assert (await value(wallet.take("b", 301))).wait_ms is None
        # Let through, and charged nothing.
        for number, rule in enumerate(("SLIDE 0 1h SHADOW", "GCRA 2 1h SHADOW")):
            say(client, rule)
            assert [(await value(wallet.take(f"s{number}", cost))).granted for cost in (1, 50, 200)] == [1, 50, 200]

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_leases(kind, socket, client):
    async def test(limits):
        jobs = limits.limit("jobs", Named("policy:jobs", Lease(1, ttl=30)))
        async with block(jobs.hold("a")) as lease:
            await value(lease.renew())
            assert held(client, "jobs:a") == 1 and lease.decision.limit == 1
            assert lease.decision.headers()["RateLimit-Policy"] == '"jobs";q=1;qu="concurrent-requests"'
        say(client, "LEASE 3 2s", "policy:jobs")
        async with block(jobs.hold("a", units=2, id="x")) as lease:
            # The ttl is that of the policy key, so that it is renewed in time.
            await asyncio.sleep(3)
            lease.check()
            assert held(client, "jobs:a") == 2 and await value(jobs.renew("a", "x"))
        assert held(client, "jobs:a") == 0 and not await value(jobs.renew("a", "x"))

    Both(kind, unix_socket_path=socket).run(test)


@KINDS
def test_shadow(kind, socket, client):
    async def test(limits):
        api = limits.limit("api", HOUR)
        say(client, "FIXED 2 1h SHADOW")
        assert all([(await value(api.take("a"))).allowed for _ in range(5)]) and used(client, "api:a") == 2
        say(client, "FIXED 2 1h")
        assert not await value(api.take("a")) and client.info("rl")["rl_fixed_shadowed"] >= 3

    Both(kind, unix_socket_path=socket).run(test, repeat_denials=1)


@KINDS
def test_what_a_named_limit_can_not_do(kind, socket, client):
    async def test(limits):
        api, other = limits.limit("api", HOUR), limits.limit("other", Fixed("1/h"))
        rules = [(other, "a", 1), (api, "a", 1)]
        with pytest.raises(InvalidLimit, match="Named limit can't"):
            await value(api.peek("a"))
        with pytest.raises(InvalidLimit, match="until is for a Fixed .*, not Named"):
            await value(api.until("a", 4_000_000_000))
        with pytest.raises(InvalidLimit, match="Named limit can't"):
            await value(limits.all(rules))
        with pytest.raises(InvalidLimit, match="Named limit can't"):
            async with block(limits.admit(rules)):
                pass
        assert client.dbsize() == 0

    Both(kind, unix_socket_path=socket).run(test)


@CLUSTERS
def test_a_cluster(kind, cluster):
    async def test(limits):
        tag = lambda key: key[key.index("{") :]
        api = limits.limit("api", Named("policy:none{0}", Fixed("10/h"), lambda key: [f"policy:api{tag(key)}"]))
        with pytest.raises(InvalidKey, match="hash tag of the call's key"):
            await value(api.take("user:1{7}"))
        good = limits.limit("api", Named("policy:api{7}", Fixed("10/h")))
        assert (await value(good.take("user:1{7}"))).limit == 10
        with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as other:
            other.set("policy:api{7}", "FIXED 20 1h")
            assert (await value(good.take("user:1{7}"))).limit == 20
            other.flushall(target_nodes="primaries")

    Both(kind, host="127.0.0.1", port=cluster.ports[1]).run(test)


def test_on_down(dead_socket):
    async def test(limits):
        decision = limits.limit("api", HOUR).take("a")
        assert (decision.granted, decision.source, decision.headers()) == (1, "down", {})
        with limits.limit("jobs", Named("policy:jobs", Lease(1, ttl=30))).hold("a"):
            assert limits.let_through == 2

    Both(redis.Redis, unix_socket_path=dead_socket).run(test, on_down=Gcra("20/s"), timeout=0.5)


def test_values():
    assert HOUR == Named("policy:api", Fixed("10/h")) != Named("policy:api", Slide("10/h"))
    assert repr(HOUR) == 'Named(\'policy:api\', Fixed("10/h"))' and eval(repr(HOUR)) == HOUR
    assert HOUR.default == Fixed("10/h") and Bucket("1/s").default == Bucket("1/s")
    with pytest.raises(InvalidKey):
        Named("", Fixed("10/h"))
    for wrong in (lambda: Named("a", HOUR), lambda: Named("a", "10/h"), lambda: Named("a", Fixed("1/h"), ["policy:b"])):
        with pytest.raises(InvalidLimit):
            wrong()
