import asyncio
import contextlib
import signal
import threading
import time

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from conftest import eventually, inspect, killed_in_the_middle, running_server, server_s
import leases
from leases import Busy, Jobs, LeaseLost, async_semaphore, semaphore

KEY = "gpu"
HOUR = 3600


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


def counter(client, name):
    return client.info("rl")[name]


def waiting(client):
    return counter(client, "rl_waiting_clients")


class Holders:
    """What the holders of leases see, by the server's clock and its record."""

    def __init__(self, client):
        self.client = client
        self.spans = []
        self.held = []

    def hold(self):
        start = server_s(self.client)
        self.held.append(inspect(self.client, KEY)["held"])
        time.sleep(0.005)
        self.spans.append((start, server_s(self.client)))

    def most_at_a_time(self):
        # An end comes before a start at the same microsecond: the server answered it before the release that let the other in.
        changes = sorted([(start, 1) for start, _ in self.spans] + [(end, -1) for _, end in self.spans])
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most


def test_thirty_threads_and_four_places(client):
    holders = Holders(client)

    def work():
        with semaphore(client, KEY, limit=4, ttl=HOUR, timeout=60):
            holders.hold()

    threads = [threading.Thread(target=work) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(holders.spans) == 30
    assert 1 <= holders.most_at_a_time() <= 4
    assert max(holders.held) == 4, "the places are used, and never more than these"
    assert inspect(client, KEY) is None and waiting(client) == 0


def test_thirty_tasks_some_of_which_fail_or_are_cancelled(client, socket):
    holders = Holders(client)
    middle = []

    async def main():
        async with redis.asyncio.Redis(unix_socket_path=socket, socket_timeout=0.5) as shared:

            async def work(n):
                async with async_semaphore(shared, KEY, limit=4, ttl=HOUR, timeout=60):
                    await asyncio.to_thread(holders.hold)
                    if n % 3 == 1:
                        raise KeyError(n)
                    if n % 3 == 2:
                        middle.append(n)
                        await asyncio.sleep(HOUR)

            tasks = [asyncio.create_task(work(n)) for n in range(30)]
            cancelled = set()
            async with asyncio.timeout(60):
                while len(cancelled) < 10:
                    for n in [n for n in middle if n not in cancelled]:
                        tasks[n].cancel()
                        cancelled.add(n)
                    await asyncio.sleep(0.002)
                results = await asyncio.gather(*tasks, return_exceptions=True)
            for n, result in enumerate(results):
                assert isinstance(result, (type(None), KeyError, asyncio.CancelledError)[n % 3])

    asyncio.run(main())
    assert len(holders.spans) == 30
    assert 1 <= holders.most_at_a_time() <= 4 and max(holders.held) == 4
    assert inspect(client, KEY) is None and waiting(client) == 0


def test_a_full_semaphore(client):
    with semaphore(client, KEY, limit=3, ttl=60, units=2) as lease:
        assert inspect(client, KEY)["held"] == 2
        for timeout in (0, 0.2):
            with pytest.raises(Busy) as busy, semaphore(client, KEY, limit=3, ttl=60, units=2, timeout=timeout):
                pytest.fail("ran without a lease")
            assert 50 < busy.value.retry_after <= 60
        with pytest.raises(Busy, match="never") as busy, semaphore(client, KEY, limit=3, ttl=60, units=4, timeout=9):
            pytest.fail("ran without a lease")
        assert busy.value.retry_after is None
        with semaphore(client, KEY, limit=3, ttl=60), semaphore(client, "another", limit=1, ttl=60):
            assert inspect(client, KEY)["held"] == 3
        lease.renew()
    with pytest.raises(ZeroDivisionError), semaphore(client, KEY, limit=3, ttl=60):
        1 / 0
    assert inspect(client, KEY) is None


def test_renewing_prolongs_and_never_takes_a_lost_lease_again(client):
    with semaphore(client, KEY, limit=1, ttl=2, id="mine") as lease:
        start = server_s(client)
        while server_s(client) < start + 2.5:
            lease.renew()
            time.sleep(0.05)
        client.delete(KEY)
        with pytest.raises(LeaseLost, match="gpu: the lease mine is lost"):
            lease.renew()
        assert inspect(client, KEY) is None
        with semaphore(client, KEY, limit=1, ttl=HOUR):
            with pytest.raises(LeaseLost):
                lease.renew()
            assert inspect(client, KEY)["held"] == 1
            lease._release()
            assert inspect(client, KEY)["held"] == 1, "a release ends no lease but its own"


CRASHES = """
import sys, time, redis
from leases import semaphore
with semaphore(redis.Redis(unix_socket_path=sys.argv[1]), "gpu", limit=1, ttl=float(sys.argv[2]), id="job-7"):
    print("in the middle", flush=True)
    time.sleep(3600)
"""


def test_the_lease_of_a_killed_process_lapses_and_the_first_in_line_gets_it(client, socket):
    released = counter(client, "rl_released")
    with killed_in_the_middle(CRASHES, socket, 3) as kill:
        lapses = server_s(client) + inspect(client, KEY)["reset_ms"] / 1000
        kill()
    with semaphore(client, KEY, limit=1, ttl=60, timeout=60):
        # The milliseconds were rounded up.
        assert server_s(client) >= lapses - 0.001
        assert counter(client, "rl_released") == released, "nobody released it"


def test_a_process_that_restarts_takes_its_own_lease_again(client, socket):
    with killed_in_the_middle(CRASHES, socket, HOUR) as kill:
        kill()
    with pytest.raises(Busy), semaphore(client, KEY, limit=1, ttl=HOUR):
        pytest.fail("ran without a lease")
    with semaphore(client, KEY, limit=1, ttl=HOUR, id="job-7"):
        assert inspect(client, KEY)["held"] == 1
    assert inspect(client, KEY) is None


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_lost_reply_makes_no_second_lease(client, proxy, what):
    losses = [(what, "COST"), (what, "RENEW"), (what, "RL.RELEASE")]
    for loss in losses:
        proxy.lose(*loss)
    with redis.Redis(unix_socket_path=proxy.server_address) as lossy:
        with semaphore(lossy, KEY, limit=2, ttl=HOUR) as lease:
            facts = inspect(client, KEY)
            assert (facts["held"], facts["leases"]) == (1, 1)
            lease.renew()
            assert inspect(client, KEY)["held"] == 1
        assert inspect(client, KEY) is None

    async def main():
        for loss in losses:
            proxy.lose(*loss)
        async with redis.asyncio.Redis(unix_socket_path=proxy.server_address) as lossy:
            async with async_semaphore(lossy, KEY, limit=2, ttl=HOUR) as lease:
                await lease.renew()
                facts = inspect(client, KEY)
                assert (facts["held"], facts["leases"]) == (1, 1)
            assert inspect(client, KEY) is None

    asyncio.run(main())
    assert proxy.lost == losses * 2


def test_a_lease_whose_reply_never_arrives_is_released(client, proxy):
    attempts = len(leases.PAUSES_S) + 1
    taken = client.info("rl")["rl_lease_granted"]
    for _ in range(attempts):
        proxy.lose("reply", "COST")
    with redis.Redis(unix_socket_path=proxy.server_address) as lossy:
        with pytest.raises(redis.ConnectionError), semaphore(lossy, KEY, limit=2, ttl=HOUR):
            pytest.fail("ran without a reply")
    assert inspect(client, KEY) is None

    async def main():
        for _ in range(attempts):
            proxy.lose("reply", "COST")
        async with redis.asyncio.Redis(unix_socket_path=proxy.server_address) as lossy:
            with pytest.raises(redis.ConnectionError):
                async with async_semaphore(lossy, KEY, limit=2, ttl=HOUR):
                    pytest.fail("ran without a reply")

    asyncio.run(main())
    assert inspect(client, KEY) is None
    assert client.info("rl")["rl_lease_granted"] == taken + 2 * attempts


def test_a_waiter_whose_connection_breaks_goes_on_waiting(client):
    got = []

    def wait():
        with semaphore(client, KEY, limit=1, ttl=HOUR, timeout=60) as lease:
            got.append(lease.id)

    with semaphore(client, KEY, limit=1, ttl=HOUR):
        thread = threading.Thread(target=wait)
        thread.start()
        for waits in (1, 2):
            eventually(lambda: waiting(client) == 1)
            [waiter] = [each for each in client.client_list() if "b" in each["flags"]]
            if waits == 1:
                client.client_kill_filter(_id=waiter["id"])
                eventually(lambda: waiter["id"] not in {each["id"] for each in client.client_list()})
        assert got == []
    thread.join(60)
    assert len(got) == 1 and inspect(client, KEY) is None


@contextlib.asynccontextmanager
async def runner(socket, limit=1, ttl=HOUR, **options):
    async with redis.asyncio.Redis(unix_socket_path=socket, **options) as client:
        yield Jobs(client, KEY, limit=limit, ttl=ttl)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_jobs_return_raise_and_never_exceed_the_limit(client, socket):
    holders = Holders(client)

    async def job(n):
        await asyncio.to_thread(holders.hold)
        return 12 // n

    async def main():
        async with runner(socket, limit=3) as jobs:
            calls = (jobs.run(job, n, wait=60) for n in (0, *range(1, 13)))
            failed, *results = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(failed, ZeroDivisionError)
            assert results == [12 // n for n in range(1, 13)]

    asyncio.run(main())
    assert len(holders.spans) == 13
    assert 1 <= holders.most_at_a_time() <= 3 and max(holders.held) == 3
    assert inspect(client, KEY) is None


def test_a_job_that_takes_longer_than_its_ttl_keeps_its_lease(client, socket):
    ended = []

    async def job():
        start = server_s(client)
        await until(lambda: server_s(client) > start + 4)
        assert inspect(client, KEY)["held"] == 1
        ended.append(server_s(client))

    async def main():
        async with runner(socket, ttl=3) as jobs:
            first = asyncio.create_task(jobs.run(job))
            await until(lambda: inspect(client, KEY))

            async def second():
                assert len(ended) == 1, "it ran only when the first had ended"

            await jobs.run(second, wait=60)
            await first

    asyncio.run(main())


def test_a_job_that_has_lost_its_lease_is_cancelled_and_touches_no_other_lease(client, socket):
    cancelled = []

    async def job():
        try:
            client.delete(KEY)
            assert client.execute_command("RL.LEASE", KEY, 1, HOUR, "ID", "successor")[0] == 1
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            cancelled.append(inspect(client, KEY)["held"])
            raise

    async def main():
        async with runner(socket, ttl=1.5) as jobs:
            with pytest.raises(LeaseLost):
                await jobs.run(job)

    asyncio.run(main())
    assert cancelled == [1]
    assert client.execute_command("RL.LEASE", KEY, 1, HOUR, "ID", "successor", "RENEW")[0] == 1


def test_a_job_that_blocks_its_event_loop_is_not_stopped_in_time(client, socket):
    """This is why a lease is no lock for correctness."""
    order = []

    async def job():
        eventually(lambda: client.execute_command("RL.LEASE", KEY, 1, HOUR, "ID", "another")[0] == 1)
        order.append("another has the lease, and this job still runs")
        try:
            await asyncio.sleep(HOUR)
        finally:
            order.append("cancelled")

    async def main():
        async with runner(socket, ttl=0.5) as jobs:
            with pytest.raises(LeaseLost):
                await jobs.run(job)

    asyncio.run(main())
    assert order == ["another has the lease, and this job still runs", "cancelled"]
    assert inspect(client, KEY)["held"] == 1


# With a short time-out, renewals fail until the lease has lapsed. With a long one, a renewal is still unanswered then.
@pytest.mark.parametrize("timeout", [0.1, 60])
def test_a_job_whose_server_hangs_stops_when_its_lease_has_lapsed(timeout):
    with running_server() as (process, socket):
        stopped = []

        async def job():
            process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(HOUR)
            finally:
                process.send_signal(signal.SIGCONT)
                stopped.append(1)

        async def main():
            options = {"socket_timeout": timeout, "retry": AsyncRetry(NoBackoff(), 0)}
            async with runner(socket, ttl=3, **options) as jobs:
                with pytest.raises(LeaseLost):
                    await asyncio.wait_for(jobs.run(job), 30)

        try:
            asyncio.run(main())
        finally:
            process.send_signal(signal.SIGCONT)
        assert stopped == [1]


def test_a_release_that_fails_is_logged_and_hides_no_result(caplog):
    with running_server() as (process, socket):

        async def job():
            process.kill()
            process.wait()
            return "a result"

        async def main():
            async with runner(socket, retry=AsyncRetry(NoBackoff(), 0)) as jobs:
                assert await jobs.run(job) == "a result"

        asyncio.run(main())
    assert "was not released, and lapses by itself" in caplog.text


def test_a_job_does_not_begin_if_its_lease_has_lapsed_already(client, socket, monkeypatch):
    def stall(lease, reply):
        assert reply[0] == 1
        client.delete(KEY)

    async def main():
        monkeypatch.setattr(leases.AsyncLease, "_acquired", stall)
        async with runner(socket) as jobs:
            with pytest.raises(LeaseLost):
                await jobs.run(lambda: pytest.fail("ran without a lease"))

    asyncio.run(main())


def test_a_job_that_is_cancelled_releases_its_lease_or_leaves_the_line(client, socket):
    held = []

    async def job():
        try:
            await asyncio.sleep(HOUR)
        finally:
            await asyncio.sleep(0.05)
            held.append(inspect(client, KEY)["held"])

    async def main():
        async with runner(socket) as jobs:
            running = asyncio.create_task(jobs.run(job))
            await until(lambda: inspect(client, KEY))
            waiter = asyncio.create_task(jobs.run(job, wait=HOUR))
            await until(lambda: waiting(client) == 1)
            for task in (waiter, running):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: waiting(client) == 0)
                assert (inspect(client, KEY) or {"held": 0})["held"] == (task is waiter)
            assert held == [1], "the job has ended before its lease does"
            with pytest.raises(Busy), semaphore(client, KEY, limit=0, ttl=1):
                pytest.fail("ran without a lease")

    asyncio.run(main())
