import asyncio
import signal

import anyio
import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from conftest import inspect, killed_in_the_middle, running_server, server_s
from gateway import Denied, Gateway, LeaseLost, Rule

HOUR = 3600
# Longer than the period: a shorter wait is denied at once.
LONG_S = 2 * HOUR
ALL = "{gateway}:tokens"


def keys(tenant="acme"):
    return [f"{{gateway}}:{tenant}:{name}" for name in ("running", "requests", "tokens")]


RUNNING, REQUESTS, TOKENS = keys()


def rules(tenant="acme", ttl=HOUR, all_tokens=2000):
    running, requests, tokens = keys(tenant)
    return [
        Rule(running, "LEASE", 2, ttl),
        Rule(requests, "FIXED", 100, "1h", cost=1),
        Rule(tokens, "FIXED", 1000, "1h"),
        Rule(ALL, "FIXED", all_tokens, "1h"),
    ]


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket, decode_responses=True) as client:
        yield client


def run(main, socket, patience=20, **options):
    """Runs main(gateway). On a busy machine a reply may take longer than the default patience."""

    async def start():
        async with redis.asyncio.Redis(unix_socket_path=socket, **options) as shared:
            gateway = Gateway(shared, patience=patience)
            async with asyncio.timeout(60):
                await main(gateway)
            await gateway.aclose()

    asyncio.run(start())


def charged(client, tenant="acme"):
    """The calls that run, the requests, the tenant's tokens, and those of all tenants."""
    facts = [inspect(client, key) or {} for key in (*keys(tenant), ALL)]
    return tuple(each.get("held", each.get("used", 0)) for each in facts)


def ids(client):
    return sum((inspect(client, key) or {}).get("ids", 0) for key in (REQUESTS, TOKENS, ALL))


def waiting(client, key=None):
    return (inspect(client, key) or {"waiting": 0})["waiting"] if key else client.info("rl")["rl_waiting_clients"]


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def test_tokens_are_settled_and_the_lease_is_released(client, socket):
    async def main(gateway):
        total = 0
        for n, (spent, left) in enumerate([(120, 120), (450, 450), (0, 0), (..., 300)], 1):
            async with gateway.admit(rules(), estimate=300) as call:
                assert charged(client) == (1, n, total + 300, total + 300)
                if spent is not ...:
                    call.used = spent
            total += left
            assert charged(client) == (0, n, total, total) and ids(client) == 0
        with pytest.raises(KeyError):
            async with gateway.admit(rules(), estimate=100) as call:
                call.used = 30
                raise KeyError("the stream broke")
        assert charged(client) == (0, 5, 900, 900)
        with pytest.raises(KeyError):
            async with gateway.admit(rules(), estimate=60):
                raise KeyError("the answer was lost")
        assert charged(client) == (0, 6, 960, 960)
        with pytest.raises(KeyError):
            async with gateway.admit(rules(), estimate=40) as call:
                call.unused()
                raise KeyError("the model is down")
        assert charged(client) == (0, 6, 960, 960) and ids(client) == 0

    run(main, socket)


def test_a_denied_call_charges_nothing_and_names_the_keys(client, socket):
    async def main(gateway):
        async with gateway.admit(rules(), estimate=700):
            for wait in (0, 0.2):
                with pytest.raises(Denied, match="tokens: the limit is reached; retry in ") as denied:
                    async with gateway.admit(rules(), estimate=301, wait=wait):
                        pytest.fail("ran without a charge")
                assert denied.value.keys == [TOKENS] and 3_500 < denied.value.retry_after <= HOUR
                assert charged(client) == (1, 1, 700, 700)
            with pytest.raises(Denied, match="retry never") as never:
                async with gateway.admit(rules(), estimate=2001, wait=LONG_S):
                    pytest.fail("ran without a charge")
            assert never.value.keys == [TOKENS, ALL] and never.value.retry_after is None
            with pytest.raises(redis.ResponseError, match="COST"):
                async with gateway.admit(rules(), estimate=0):
                    pytest.fail("ran without a charge")
            assert charged(client) == (1, 1, 700, 700)

    run(main, socket)


def test_thirty_calls_of_three_tenants_share_what_all_have(client, socket):
    seen = []

    async def main(gateway):
        async def work(n, tenant):
            async with gateway.admit(rules(tenant, all_tokens=1000), estimate=250, wait=LONG_S) as call:
                seen.append(charged(client, tenant))
                await asyncio.sleep(0.005)
                if n % 3 == 0:
                    call.unused()
                    raise KeyError(n)
                call.used = n

        calls = (work(n, tenant) for n in range(10) for tenant in ("ada", "bob", "eve"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for at, result in enumerate(results):
            assert isinstance(result, KeyError if at // 3 % 3 == 0 else type(None))

    run(main, socket)
    assert len(seen) == 30
    assert all(held <= 2 and of_all <= 1000 for held, _, _, of_all in seen)
    total = sum(n for n in range(10) if n % 3)
    for tenant in ("ada", "bob", "eve"):
        assert charged(client, tenant) == (0, 6, total, 3 * total)
    assert client.info("rl")["rl_waits"] > 0 and waiting(client) == 0


def test_a_tenant_that_waits_for_its_own_lease_delays_no_other(client, socket):
    async def main(gateway):
        async def work(done):
            async with gateway.admit(rules(), estimate=100, wait=LONG_S):
                await done.wait()

        done = asyncio.Event()
        tasks = [asyncio.create_task(work(done)) for _ in range(3)]
        await until(lambda: waiting(client) == 1)
        assert (waiting(client, RUNNING), waiting(client, ALL)) == (1, 0)
        assert charged(client) == (2, 2, 200, 200)
        async with gateway.admit(rules("bob"), estimate=100):
            assert charged(client) == (2, 2, 200, 300)
        done.set()
        await asyncio.gather(*tasks)
        assert charged(client) == (0, 3, 300, 400)

    run(main, socket)


def test_a_task_that_is_cancelled_keeps_the_estimate_or_leaves_the_lines(client, socket):
    async def main(gateway):
        async def work():
            async with gateway.admit(rules(), estimate=600, wait=LONG_S):
                await asyncio.sleep(HOUR)

        running = asyncio.create_task(work())
        await until(lambda: charged(client)[0] == 1)
        waiter = asyncio.create_task(work())
        await until(lambda: waiting(client) == 1)
        for task, held in ((waiter, 1), (running, 0)):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: waiting(client) == 0)
            assert charged(client) == (held, 1, 600, 600)

    run(main, socket)


@pytest.mark.parametrize("spent", [120, 450])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_lost_reply_charges_once_and_settles_once(client, proxy, what, spent):
    losses = [(what, command) for command in ("RL.ALL", "RENEW", "RL.SETTLE", "RL.RELEASE")]

    async def main(gateway):
        for n in range(1, 3):
            for loss in losses:
                proxy.lose(*loss)
            async with gateway.admit(rules(), estimate=300) as call:
                assert charged(client) == (1, n, (n - 1) * spent + 300, (n - 1) * spent + 300)
                call.used = spent
            assert charged(client) == (0, n, n * spent, n * spent) and ids(client) == 0

    run(main, proxy.server_address)
    assert proxy.lost == losses * 2


def test_a_lost_reply_of_a_waiter_charges_once(client, proxy):
    async def main(gateway):
        async def waits():
            async with gateway.admit(rules(), estimate=600, wait=LONG_S) as call:
                # The other call may still have its lease, because it releases it last.
                assert charged(client)[1:] == (2, 700, 700)
                call.used = 50

        async with gateway.admit(rules(), estimate=600) as call:
            # The server grants the waiter when this block ends. Then the reply is lost with its connection.
            proxy.lose("reply", "BLOCK")
            waiter = asyncio.create_task(waits())
            await until(lambda: waiting(client) == 1)
            call.used = 100
        await waiter
        assert charged(client) == (0, 2, 150, 150)

    run(main, proxy.server_address)
    assert proxy.lost == [("reply", "BLOCK")]


def test_if_a_repeated_call_is_denied_what_the_first_has_charged_is_given_back(client, proxy):
    class Forgetful(Gateway):
        async def _send(self, command, deadline, **options):
            # The first call is charged, and its reply is lost. Then its lease lapses, and others take it.
            if command[0] == "RL.ALL":
                proxy.lose("reply", "RL.ALL")
                with pytest.raises(redis.ConnectionError):
                    await super()._send(command, deadline, once=True)
                assert charged(client) == (1, 1, 300, 300)
                client.delete(RUNNING)
                client.execute_command("RL.LEASE", RUNNING, 2, HOUR, "ID", "others", "COST", 2)
                reply, _ = await super()._send(command, deadline)
                return reply, True
            return await super()._send(command, deadline, **options)

    async def main(gateway):
        with pytest.raises(Denied) as denied:
            async with Forgetful(gateway.client).admit(rules(), estimate=300):
                pytest.fail("ran without a lease")
        assert denied.value.keys == [RUNNING]
        assert charged(client) == (2, 0, 0, 0)

    run(main, proxy.server_address, retry=AsyncRetry(NoBackoff(), 0))


def test_when_the_id_is_forgotten_only_the_excess_is_charged(client, socket):
    async def main(gateway):
        for spent, excess in [(450, 150), (120, 0), (..., 0)]:
            async with gateway.admit(rules(), estimate=300) as call:
                client.delete(TOKENS, ALL)
                if spent is not ...:
                    call.used = spent
            assert charged(client)[2:] == (excess, excess)
            client.delete(TOKENS, ALL)

    run(main, socket)


def test_a_call_that_takes_longer_than_its_ttl_keeps_its_lease(client, socket):
    async def main(gateway):
        start = server_s(client)
        async with gateway.admit(rules(ttl=2), estimate=100):
            await until(lambda: server_s(client) > start + 5)
            assert charged(client)[0] == 1
        assert charged(client)[0] == 0

    run(main, socket)


def test_a_call_whose_lease_is_lost_is_cancelled_and_keeps_its_estimate(client, socket):
    order = []

    async def main(gateway):
        with pytest.raises(LeaseLost):
            async with gateway.admit(rules(ttl=3), estimate=100):
                client.delete(RUNNING)
                try:
                    await asyncio.sleep(HOUR)
                finally:
                    order.append("cancelled")
        assert order == ["cancelled"] and charged(client) == (0, 1, 100, 100)
        with pytest.raises(TimeoutError):
            async with gateway.admit(rules(), estimate=100), asyncio.timeout(0.01):
                await asyncio.sleep(HOUR)
        assert charged(client) == (0, 2, 200, 200)
        with pytest.raises(LeaseLost):
            async with gateway.admit(rules(ttl=3), estimate=100):
                client.delete(RUNNING)
                # A block that does not let itself be cancelled.
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(HOUR)
        assert charged(client) == (0, 3, 300, 300)

    run(main, socket)


def test_a_call_whose_server_hangs_stops_when_its_lease_has_lapsed():
    with running_server() as (process, socket):
        stopped = []

        async def main(gateway):
            with pytest.raises(LeaseLost):
                async with gateway.admit(rules(ttl=3), estimate=100):
                    process.send_signal(signal.SIGSTOP)
                    try:
                        await asyncio.sleep(HOUR)
                    finally:
                        process.send_signal(signal.SIGCONT)
                        stopped.append(1)

        try:
            run(main, socket, socket_timeout=60, retry=AsyncRetry(NoBackoff(), 0))
        finally:
            process.send_signal(signal.SIGCONT)
        assert stopped == [1]


CRASHES = """
import sys, asyncio, redis.asyncio
from gateway import Gateway
from test_gateway import rules
async def main():
    gateway = Gateway(redis.asyncio.Redis(unix_socket_path=sys.argv[1]))
    async with gateway.admit(rules(ttl=2), estimate=300, id="job-7"):
        print("in the middle", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


def test_a_process_that_is_killed_frees_its_lease_and_a_new_one_continues_its_charge(client, socket):
    with killed_in_the_middle(CRASHES, socket) as kill:
        assert charged(client) == (1, 1, 300, 300)
        kill()

    async def main(gateway):
        # The lease ends by itself. The tokens stay charged until they are settled.
        await until(lambda: inspect(client, RUNNING) is None)
        assert charged(client) == (0, 1, 300, 300)
        # This time the estimate is higher, but the charge is the one of the first time.
        async with gateway.admit(rules(), estimate=400, id="job-7") as call:
            assert charged(client) == (1, 1, 300, 300)
            call.used = 350
        assert charged(client) == (0, 1, 350, 350)

    run(main, socket)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_down_raises_before_the_call_and_never_after_it(caplog, stop):
    with running_server() as (process, socket):

        async def main(gateway):
            async with gateway.admit(rules(), estimate=300) as call:
                process.send_signal(stop)
                if stop == signal.SIGKILL:
                    process.wait()
                call.used = 120
            assert f"{TOKENS}: 300 of " in caplog.text
            # On a connection that it has, a call waits for an answer as long as it has asked to wait.
            for wait in (0, LONG_S) if stop == signal.SIGKILL else (0,):
                with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                    async with gateway.admit(rules(), estimate=300, wait=wait):
                        pytest.fail("ran without a charge")

        # redis-py's own settings repeat for longer than the time that `run` allows.
        run(main, socket, patience=0.2, socket_timeout=None)


def test_calls_that_wait_leave_connections_to_the_calls_that_run(client, socket):
    async def main(gateway):
        async def work():
            async with gateway.admit(rules(ttl=3), estimate=10, wait=LONG_S) as call:
                call.used = 1

        async with gateway.admit(rules(ttl=3), estimate=10), gateway.admit(rules(ttl=3), estimate=10):
            start = server_s(client)
            tasks = [asyncio.create_task(work()) for _ in range(12)]
            await until(lambda: waiting(client) == 12)
            await until(lambda: server_s(client) > start + 4)
            assert charged(client)[0] == 2 and waiting(client) == 12
        await asyncio.gather(*tasks)
        assert charged(client) == (0, 14, 32, 32)

    run(main, socket, max_connections=4)


@pytest.mark.parametrize("unused", [False, True])
def test_a_second_cancellation_does_not_end_the_settlement(client, socket, unused):
    async def main(gateway):
        async def work():
            async with gateway.admit(rules(), estimate=600) as call:
                if unused:
                    call.unused()
                await asyncio.sleep(HOUR)

        task = asyncio.create_task(work())
        await until(lambda: charged(client)[0] == 1)
        await asyncio.sleep(0.01)
        # The renewals end, then the settlement begins: the second cancellation meets one or the other.
        for _ in range(20):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await gateway.aclose()
        assert charged(client) == ((0, 0, 0, 0) if unused else (0, 1, 600, 600))

        # anyio cancels a task again at each await, until the scope ends.
        client.flushall()
        with anyio.CancelScope() as scope:
            async with gateway.admit(rules(), estimate=600) as call:
                if unused:
                    call.unused()
                scope.cancel()
                await anyio.sleep(HOUR)
        await gateway.aclose()
        assert charged(client) == ((0, 0, 0, 0) if unused else (0, 1, 600, 600))

    run(main, socket)


def test_a_stream_that_breaks_is_charged_what_it_has_sent(client, socket):
    async def main(gateway):
        async def stream():
            async with gateway.admit(rules(), estimate=600) as call:
                call.used = 100
                for _ in range(3):
                    call.used += 7
                await asyncio.sleep(HOUR)

        task = asyncio.create_task(stream())
        await until(lambda: charged(client)[0] == 1)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert charged(client) == (0, 1, 121, 121)

    run(main, socket)


def test_a_waiting_call_that_a_failover_ends_calls_again(client, socket):
    async def main(gateway):
        async def work():
            async with gateway.admit(rules(), estimate=600, wait=LONG_S) as call:
                call.used = 50

        def waiters():
            return [each["id"] for each in client.client_list() if "b" in each["flags"]]

        async with gateway.admit(rules(), estimate=600) as call:
            task = asyncio.create_task(work())
            for _ in range(3):
                await until(waiters)
                [first] = waiters()
                # The reply is the same as on a failover.
                client.client_unblock(first, error=True)
                await until(lambda: task.done() or waiters() not in ([], [first]))
            call.used = 100
        await task
        assert charged(client) == (0, 2, 150, 150)

    run(main, socket)


def test_a_waiting_call_outlasts_the_time_in_which_its_server_is_a_replica():
    with running_server() as (_, socket), redis.Redis(unix_socket_path=socket) as client:

        async def main(gateway):
            async def work():
                async with gateway.admit(rules(), estimate=600, wait=LONG_S) as call:
                    call.used = 50

            async with gateway.admit(rules(), estimate=600):
                task = asyncio.create_task(work())
                await until(lambda: waiting(client) == 1)
                # The waiting call gets UNBLOCKED, and then READONLY each time that it calls again.
                client.replicaof("127.0.0.1", 1)
                await until(lambda: client.info("errorstats").get("errorstat_READONLY", {"count": 0})["count"] >= 2)
                client.replicaof("NO", "ONE")
                await until(lambda: waiting(client) == 1)
                client.delete(TOKENS, ALL)
                await task
            assert charged(client) == (0, 2, 50, 50)

        run(main, socket)


def test_a_renewal_that_fails_in_any_way_is_tried_again(client, socket):
    class Failing(Gateway):
        async def _send(self, command, *rest, **options):
            if "RENEW" in command:
                failures.append(len(failures))
                if len(failures) == 2:
                    raise KeyError("a defect")
            return await super()._send(command, *rest, **options)

    failures = []

    async def main(gateway):
        start = server_s(client)
        async with Failing(gateway.client).admit(rules(ttl=3), estimate=100):
            await until(lambda: server_s(client) > start + 5)
            assert charged(client)[0] == 1

    run(main, socket)
    assert len(failures) > 3


def test_wrong_arguments_are_refused_before_the_charge(client, socket):
    for wrong in ("30s", None, "30"):
        with pytest.raises(ValueError, match="ttl"):
            Rule(RUNNING, "LEASE", 2, wrong)

    async def main(gateway):
        for wait in (-1, 86_401, float("nan")):
            with pytest.raises(ValueError, match="wait"):
                async with gateway.admit(rules(), estimate=100, wait=wait):
                    pytest.fail("ran without a charge")
        assert charged(client) == (0, 0, 0, 0)
        for n, (wrong, error) in enumerate([(-1, ValueError), (1.5, TypeError), ("7", TypeError)], 1):
            with pytest.raises(error):
                async with gateway.admit(rules(), estimate=100) as call:
                    call.used = wrong
            assert charged(client) == (0, n, 100 * n, 100 * n)
        bucket = Rule("{gateway}:bucket", "BUCKET", 100, 3600, ["CAPACITY", 500])
        async with gateway.admit([bucket], estimate=300) as call:
            call.used = 120
        assert inspect(client, bucket.key)["used"] == 120

    run(main, socket)
