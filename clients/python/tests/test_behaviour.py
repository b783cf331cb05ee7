"""The cases of clients/behaviour.json, on one server, on a cluster, behind Sentinel, without a server and without the
module."""

import asyncio
import contextlib

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from conftest import running_sentinel, running_server
from helpers import limits_of
from table import TABLE, Table, policy_of

CASES = pytest.mark.parametrize("case", TABLE["cases"], ids=[case["name"] for case in TABLE["cases"]])


def run(make, send, case, **options):
    """Runs a case with the limits of the client that `make` makes."""

    async def main():
        client = make()
        limits = limits_of(client, **options)
        try:
            await Table(limits, send).run(case)
        finally:
            if hasattr(limits, "aclose"):
                await limits.aclose()
                await client.aclose()
            else:
                limits.close()
                client.close()

    asyncio.run(main())


@CASES
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
def test_one_server(kind, protocol, decode, case, socket):
    with redis.Redis(unix_socket_path=socket) as other:
        make = lambda: kind(unix_socket_path=socket, protocol=protocol, decode_responses=decode)
        run(make, other.execute_command, case)


@CASES
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", [redis.RedisCluster, redis.asyncio.RedisCluster], ids=["threads", "asyncio"])
def test_cluster(kind, protocol, case, cluster):
    with redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as other:
        other.flushall(target_nodes="primaries")
        redirected = [cluster.node(port).info("errorstats") for port in cluster.ports]
        run(lambda: kind(host="127.0.0.1", port=cluster.ports[1], protocol=protocol), other.execute_command, case)
        # Each call went to the right node at once.
        assert [cluster.node(port).info("errorstats").get("errorstat_MOVED") for port in cluster.ports] == [
            each.get("errorstat_MOVED") for each in redirected
        ]


@pytest.mark.parametrize("kind", [Sentinel, AsyncSentinel], ids=["threads", "asyncio"])
def test_sentinel_with_a_failover(kind):
    with running_sentinel() as watched, contextlib.ExitStack() as stack:
        others = [stack.enter_context(redis.Redis(port=port)) for port in watched.ports]

        def primary():
            return next(other for other in others if other.info("replication")["role"] == "master")

        make = lambda: kind([("127.0.0.1", watched.sentinel_port)]).master_for("limits")
        names = ("fixed: granted until the limit", "charge: settled to what", "hold: a lease", "all: all limits")
        cases = [case for case in TABLE["cases"] if case["name"].startswith(names)]
        assert len(cases) == len(names)

        async def main():
            client = make()
            limits = limits_of(client)
            tokens = limits.limit("tokens", policy_of({"type": "fixed", "rate": "1000/h"}))
            # Idle connections to the primary of now.
            for case in cases:
                primary().flushall()
                await Table(limits, primary().execute_command).run(case)

            async def charged(**options):
                charge = tokens.charge("a", 100, **options)
                if hasattr(charge, "__aenter__"):
                    async with charge:
                        watched.failover()
                        charge.used = 60
                else:
                    with charge:
                        watched.failover()
                        charge.used = 60

            # The primary changes between the charge and its settlement. The charge was replicated before.
            await charged()
            assert primary().execute_command("RL.PEEK", "FIXED", "tokens:a", 1000, "1h")[2] == 940
            for case in cases:
                primary().flushall()
                await Table(limits, primary().execute_command).run(case)
            if hasattr(limits, "aclose"):
                await limits.aclose()
                await client.aclose()
            else:
                limits.close()
                client.close()

        asyncio.run(main())


def run_step(step, socket, kind):
    facts = TABLE["down_policy"]
    case = {"limits": {"api": facts}, "steps": [{name: step[name] for name in step if name != "on_down"}]}
    run(lambda: kind(unix_socket_path=socket), None, case, on_down=step["on_down"], timeout=0.5)


def names(rows):
    return [f"{row['on_down']}-{row['call']}-{number}" for number, row in enumerate(rows)]


@pytest.mark.parametrize("step", TABLE["down"], ids=names(TABLE["down"]))
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
def test_down(kind, step, gone):
    run_step(step, gone, kind)


@pytest.fixture(scope="module")
def gone():
    """The socket of a server that has ended."""
    with running_server() as (process, socket):
        process.kill()
        process.wait()
        yield socket


@pytest.fixture(scope="module")
def bare():
    with running_server(module=None) as (_, socket):
        yield socket


@pytest.mark.parametrize("step", TABLE["no_module"], ids=names(TABLE["no_module"]))
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
def test_no_module(kind, step, bare):
    run_step(step, bare, kind)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
def test_a_local_limiter(kind, gone):
    """The steps follow each other, on one limit."""
    policy = policy_of(TABLE["local_policy"])
    case = {"limits": {"api": TABLE["down_policy"]}, "steps": TABLE["local"]}
    run(lambda: kind(unix_socket_path=gone), None, case, on_down=policy, timeout=0.5)
