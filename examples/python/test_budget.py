import asyncio
import signal

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from budget import Budget, Limit, OverBudget
from conftest import inspect, killed_in_the_middle, running_server

TOKENS = "llm:tokens"
REQUESTS = "llm:requests"


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


def run(main, socket, *limits, **options):
    """Runs main(budget)."""

    async def start():
        async with redis.asyncio.Redis(unix_socket_path=socket, **options) as shared:
            await main(Budget(shared, *limits))

    asyncio.run(start())


# Longer than the period: a shorter wait is denied at once.
LONG_S = 7200


def tokens(algorithm="FIXED", period="1h"):
    return Limit(TOKENS, algorithm, 1000, period)


def requests():
    return Limit(REQUESTS, "FIXED", 10, "1h", cost=1)


def used(client, key=TOKENS):
    return (inspect(client, key) or {"used": 0})["used"]


def ids(client, key=TOKENS):
    return (inspect(client, key) or {"ids": 0})["ids"]


def waiting(client):
    return client.info("rl")["rl_waiting_clients"]


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("algorithm", ["FIXED", "SLIDE", "GCRA", "BUCKET"])
def test_the_estimate_is_settled_to_what_was_used(client, socket, algorithm):
    async def main(budget):
        # What was used, and what is charged for it. `...` leaves the estimate.
        total = 0
        for spent, charged in [(120, 120), (300, 300), (450, 450), (0, 0), (..., 300), (60, 60)]:
            async with budget.charge(300, wait=0) as charge:
                assert used(client) == total + 300 and ids(client) == 1
                if spent is not ...:
                    charge.used = spent
            total += charged
            assert used(client) == total and ids(client) == 0
            # The estimate of 300 is denied if it no longer fits.
            if total > 700:
                with pytest.raises(OverBudget):
                    async with budget.charge(300, wait=0):
                        pytest.fail("ran without a charge")
                client.delete(TOKENS)
                total = 0

    run(main, socket, tokens(algorithm, "1d"))


def test_a_call_may_use_more_than_the_limit_and_later_calls_pay_it_off(client, socket):
    async def main(budget):
        async with budget.charge(900, wait=0) as charge:
            charge.used = 1500
        facts = inspect(client, TOKENS)
        assert (facts["used"], facts["remaining"]) == (1500, 0)
        with pytest.raises(OverBudget) as denied:
            async with budget.charge(1, wait=0):
                pytest.fail("ran without a charge")
        # One window pays 1000 of the 1500, and the next window has room for 500.
        assert 3_500 < denied.value.retry_after <= 3_600

    run(main, socket, tokens())


def test_a_failure_gives_everything_back_unless_used_is_set(client, socket):
    async def main(budget):
        with pytest.raises(KeyError):
            async with budget.charge(300, wait=0):
                assert (used(client), used(client, REQUESTS)) == (300, 1)
                raise KeyError("the model is down")
        assert (used(client), used(client, REQUESTS)) == (0, 0)
        with pytest.raises(KeyError):
            async with budget.charge(300, wait=0) as charge:
                charge.used = 80
                raise KeyError("the stream broke")
        assert (used(client), used(client, REQUESTS)) == (80, 1)
        assert (ids(client), ids(client, REQUESTS)) == (0, 0)

    run(main, socket, tokens(), requests())


def test_a_task_that_is_cancelled_gives_back_its_charge_or_leaves_the_line(client, socket):
    async def main(budget):
        async def call():
            async with budget.charge(600, wait=LONG_S):
                await asyncio.sleep(3600)

        running = asyncio.create_task(call())
        await until(lambda: used(client) == 600)
        waiter = asyncio.create_task(call())
        await until(lambda: waiting(client) == 1)
        # The limit before it had charged the waiter.
        assert used(client, REQUESTS) == 2
        for task, left in ((waiter, 1), (running, 0)):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: waiting(client) == 0)
            assert (used(client, REQUESTS), used(client)) == (left, 600 * left)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await call()
        assert (used(client, REQUESTS), used(client)) == (0, 0)

    run(main, socket, requests(), tokens())


def test_thirty_calls_wait_in_line_for_a_budget_of_four_estimates(client, socket):
    seen = []

    async def main(budget):
        async def call(n):
            async with budget.charge(250, wait=LONG_S) as charge:
                seen.append(used(client))
                await asyncio.sleep(0.005)
                if n % 3 == 0:
                    raise KeyError(n)
                charge.used = n

        results = await asyncio.gather(*(call(n) for n in range(30)), return_exceptions=True)
        for n, result in enumerate(results):
            assert isinstance(result, KeyError if n % 3 == 0 else type(None))

    run(main, socket, tokens())
    assert len(seen) == 30 and max(seen) <= 1000
    assert client.info("rl")["rl_waits"] > 0
    assert used(client) == sum(n for n in range(30) if n % 3)
    assert (ids(client), waiting(client)) == (0, 0)


def test_if_one_limit_denies_the_others_are_given_back(client, socket):
    async def main(budget):
        for wait in (0, 0.2):
            async with budget.charge(700, wait=1):
                with pytest.raises(OverBudget, match="^llm:tokens: the limit of 1000 is reached; retry in ") as denied:
                    async with budget.charge(301, wait=wait):
                        pytest.fail("ran without a charge")
                assert denied.value.key == TOKENS and 3_500 < denied.value.retry_after <= 3_600
                assert (used(client, REQUESTS), used(client)) == (1, 700)
            client.flushall()
        with pytest.raises(OverBudget, match="retry never") as never:
            async with budget.charge(1001, wait=9):
                pytest.fail("ran without a charge")
        assert never.value.retry_after is None
        assert used(client, REQUESTS) == 0
        with pytest.raises(redis.ResponseError, match="COST"):
            async with budget.charge(0, wait=0):
                pytest.fail("ran without a charge")
        assert used(client, REQUESTS) == 0

    run(main, socket, requests(), tokens())


@pytest.mark.parametrize("spent", [120, 450])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_lost_reply_charges_once_and_settles_once(client, proxy, what, spent):
    async def main(budget):
        for n in range(1, 3):
            proxy.lose(what, "COST")
            proxy.lose(what, "RL.SETTLE")
            async with budget.charge(300, wait=0) as charge:
                assert used(client) == (n - 1) * spent + 300
                charge.used = spent
            assert used(client) == n * spent
        proxy.lose(what, "COST")
        proxy.lose(what, "RL.SETTLE")
        client.delete(TOKENS)
        with pytest.raises(KeyError):
            async with budget.charge(300, wait=0):
                raise KeyError("the model is down")
        assert used(client) == 0 and ids(client) == 0

    run(main, proxy.server_address, tokens())
    assert proxy.lost == [(what, "COST"), (what, "RL.SETTLE")] * 3


def test_a_lost_reply_of_a_waiter_charges_once(client, proxy):
    async def main(budget):
        async def waits():
            async with budget.charge(600, wait=LONG_S) as charge:
                assert used(client) == 700
                charge.used = 50

        async with budget.charge(600, wait=0) as charge:
            # The server grants the waiter when this block ends. Then the reply is lost with its connection.
            proxy.lose("reply", "BLOCK")
            waiter = asyncio.create_task(waits())
            await until(lambda: waiting(client) == 1)
            charge.used = 100
        await waiter
        assert used(client) == 150

    run(main, proxy.server_address, tokens())
    assert proxy.lost == [("reply", "BLOCK")]


def test_when_the_id_is_forgotten_only_the_excess_is_charged(client, socket):
    async def main(budget):
        # What was used, and what is charged when the charge itself is past. Deleting the key forgets it, too.
        for spent, charged in [(450, 150), (120, 0), (300, 0), (..., 0), (2000, 1700)]:
            async with budget.charge(300, wait=0) as charge:
                client.delete(TOKENS)
                if spent is not ...:
                    charge.used = spent
            assert used(client) == charged
            client.delete(TOKENS)
        client.execute_command("RL.FIXED", TOKENS, 1000, "1h", "COST", 100, "ID", "job-8")
        async with budget.charge(300, wait=0, id="job-8") as charge:
            client.delete(TOKENS)
            charge.used = 120
        assert used(client) == 20, "100 were charged, not 300"
        client.delete(TOKENS)
        with pytest.raises(KeyError):
            async with budget.charge(300, wait=0):
                client.delete(TOKENS)
                raise KeyError("the model is down")
        assert client.keys(TOKENS) == []

    run(main, socket, tokens())


def test_a_call_that_lasts_until_its_charge_is_past(client, socket):
    async def main(budget):
        async with budget.charge(300, wait=0) as charge:
            await until(lambda: used(client) == 0)
            charge.used = 1_000_300
        # The excess takes five minutes to flow off.
        assert 500_000 < used(client) <= 1_000_000

    run(main, socket, tokens("GCRA", 0.3))


CRASHES = """
import sys, asyncio, redis.asyncio
from budget import Budget, Limit
async def main():
    budget = Budget(redis.asyncio.Redis(unix_socket_path=sys.argv[1]), Limit("llm:tokens", "FIXED", 1000, "1h"))
    async with budget.charge(300, wait=0, id="job-7"):
        print("in the middle", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
"""


def test_a_process_that_restarts_is_charged_once_for_the_same_id(client, socket):
    with killed_in_the_middle(CRASHES, socket) as kill:
        assert used(client) == 300
        kill()

    async def main(budget):
        # This time the estimate is higher, but the charge is the one of the first time.
        async with budget.charge(400, wait=0, id="job-7") as charge:
            assert used(client) == 300
            charge.used = 350
        assert used(client) == 350
        # The charge that is settled is the first one, whatever the second asks for.
        for spent, total in [(..., 650), (380, 1030)]:
            assert client.execute_command("RL.FIXED", TOKENS, 1000, "1h", "COST", 300, "ID", "job-8")[0] == 300
            async with budget.charge(400, wait=0, id="job-8") as charge:
                if spent is not ...:
                    charge.used = spent
            assert used(client) == total

    run(main, socket, tokens())


def test_a_server_that_is_down_raises_before_the_call_and_never_after_it(caplog):
    with running_server() as (process, socket):

        async def main(budget):
            async with budget.charge(300, wait=0) as charge:
                process.send_signal(signal.SIGKILL)
                process.wait()
                charge.used = 120
            assert "llm:tokens: 300 of " in caplog.text
            with pytest.raises(redis.ConnectionError):
                async with budget.charge(300, wait=0):
                    pytest.fail("ran without a charge")

        run(main, socket, tokens(), retry=AsyncRetry(NoBackoff(), 0))
