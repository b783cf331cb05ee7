"""A semaphore and a job runner over redis-py: at most `limit` at a time, over all processes and machines that use the key.

    with semaphore(redis.Redis(), "gpu", limit=4, ttl=60, timeout=30) as lease:     # waits in line; Busy after 30 s
        for batch in batches:
            work(batch)
            lease.renew()                          # 60 s from now; LeaseLost: the lease has lapsed, so stop

    async with async_semaphore(redis.asyncio.Redis(), "gpu", limit=4, ttl=60, timeout=30) as lease:
        ...                                        # the same, with `await lease.renew()`

    jobs = Jobs(redis.asyncio.Redis(), "reports", limit=4, ttl=30)
    await jobs.run(report, customer, wait=3600)    # renews by itself while report(customer) runs

The server holds the calls that wait, first come first served. The end of the block releases the lease, also after an
exception. A lease that is neither renewed nor released lapses by itself, `ttl` seconds after its last renewal: so the lease
of a process that crashed goes to the first in line, without anybody's help.

This is no lock for correctness. A holder that stalls for longer than its ttl (a paused machine, a blocked event loop) loses
its lease to another one and is not stopped: it finds out when it renews. Where two holders at once would do harm, the
storage that they write to must refuse the older one.

Each lease has an id. The default is a new uuid4 for each lease. Pass `id` to take a lease again after a restart of the
process, without waiting until it lapses: the id of the job, for example. The same id twice at a time is one lease for both,
so only pass it if the process before has ended.

A lost reply does no harm: the call is repeated with the same id, and the server answers with the lease that it granted
before.
"""

import asyncio
import contextlib
import logging
import math
import time
import uuid

import redis
import redis.asyncio

log = logging.getLogger(__name__)

# The client waits for a reply this much longer than the wait that it asks the server for.
MARGIN_S = 5
# A call whose reply is lost is repeated after each of these pauses.
PAUSES_S = (0.1, 0.5, 2)


class Busy(Exception):
    """All units are held, and none became free in time. `retry_after` is in seconds, and at most: holders may release earlier.
    None means that a retry is never granted."""

    def __init__(self, key, wait_ms):
        self.retry_after = None if wait_ms < 0 else wait_ms / 1000
        when = "never" if self.retry_after is None else f"within {self.retry_after} s"
        super().__init__(f"{key}: all units are held; free {when}")


class LeaseLost(Exception):
    """The lease has lapsed, or could not be renewed until it did. Another holder may have its units."""

    def __init__(self, lease):
        super().__init__(f"{lease.key}: the lease {lease.id} is lost")


class Lease:
    """What a semaphore's block gets. It is not for sharing between blocks."""

    def __init__(self, client, key, limit, ttl, units, id):
        self.client = client
        self.key = key
        self.id = uuid.uuid4().hex if id is None else id
        self._take = ("RL.LEASE", key, limit, _duration(ttl), "ID", self.id)
        self._units = units

    def renew(self):
        """The lease lapses `ttl` from now. Raises LeaseLost if it has lapsed already; the units are not taken again."""
        self._renewed(_send(self.client, (*self._take, "RENEW")))

    def _acquire(self, timeout):
        try:
            reply = _send(self.client, (*self._take, "COST", self._units), timeout)
        except BaseException:
            # No reply arrived, but the server may have granted the lease.
            self._release(pauses=())
            raise
        self._acquired(reply)

    def _release(self, pauses=PAUSES_S):
        try:
            self._released(_send(self.client, ("RL.RELEASE", self.key, self.id), pauses=pauses))
        except redis.RedisError as error:
            self._not_released(error)

    def _acquired(self, reply):
        if not reply[0]:
            raise Busy(self.key, reply[3])

    def _renewed(self, reply):
        if not reply[0]:
            raise LeaseLost(self)

    def _released(self, reply):
        # Nil also answers a release that is repeated after its reply was lost.
        if reply is None:
            log.info("%s: the lease %s had ended before it was released", self.key, self.id)

    def _not_released(self, error):
        log.warning("%s: the lease %s was not released, and lapses by itself: %s", self.key, self.id, error)


class AsyncLease(Lease):
    """The same for asyncio."""

    async def renew(self):
        self._renewed(await _async_send(self.client, (*self._take, "RENEW")))

    async def _acquire(self, timeout):
        try:
            reply = await _async_send(self.client, (*self._take, "COST", self._units), timeout)
        except BaseException:
            await self._release(pauses=())
            raise
        self._acquired(reply)

    async def _release(self, pauses=PAUSES_S):
        try:
            self._released(await _async_send(self.client, ("RL.RELEASE", self.key, self.id), pauses=pauses))
        except redis.RedisError as error:
            self._not_released(error)


@contextlib.contextmanager
def semaphore(client, key, *, limit, ttl, timeout=0, units=1, id=None):
    """Holds `units` of `limit` during the block. Waits in line for at most `timeout` seconds; then raises Busy."""
    lease = Lease(client, key, limit, ttl, units, id)
    lease._acquire(timeout)
    try:
        yield lease
    finally:
        lease._release()


@contextlib.asynccontextmanager
async def async_semaphore(client, key, *, limit, ttl, timeout=0, units=1, id=None):
    """The same for asyncio. A task that is cancelled leaves the line, or releases its lease."""
    lease = AsyncLease(client, key, limit, ttl, units, id)
    await lease._acquire(timeout)
    try:
        yield lease
    finally:
        await lease._release()


class Jobs:
    """Runs async functions, at most `limit` at a time over all runners of this key."""

    def __init__(self, client, key, *, limit, ttl):
        self.client = client
        self.key = key
        self.limit = limit
        self.ttl = ttl

    async def run(self, job, *arguments, wait=0, units=1, id=None):
        """Waits in line for at most `wait` seconds (then raises Busy), runs job(*arguments), and returns its result.

        The lease is renewed at each third of its ttl. When it is lost, the job is cancelled at its next `await`, and LeaseLost
        is raised. A job must not block the event loop: then nothing is renewed, and nothing is cancelled."""
        options = {"limit": self.limit, "ttl": self.ttl, "units": units, "id": id}
        async with async_semaphore(self.client, self.key, timeout=wait, **options) as lease:
            # How long ago the server granted the lease is unknown; a lease that is renewed now lasts a ttl from now at least.
            renewed = time.monotonic()
            await lease.renew()
            work = asyncio.ensure_future(job(*arguments))
            heartbeat = asyncio.create_task(self._renew_until_lost(lease, renewed))
            try:
                await asyncio.wait((work, heartbeat), return_when=asyncio.FIRST_COMPLETED)
                return work.result() if work.done() else heartbeat.result()
            finally:
                # The lease is released only when the job has ended.
                work.cancel()
                heartbeat.cancel()
                await asyncio.gather(work, heartbeat, return_exceptions=True)

    async def _renew_until_lost(self, lease, renewed):
        while True:
            lapses = renewed + self.ttl
            await asyncio.sleep(min(self.ttl / 3, lapses - time.monotonic()))
            now = time.monotonic()
            try:
                # Without an answer the lease lapses, although no renewal was denied.
                async with asyncio.timeout(lapses - now):
                    await lease.renew()
                renewed = now
            except (redis.RedisError, TimeoutError) as error:
                if time.monotonic() >= lapses:
                    raise LeaseLost(lease) from error
                log.warning("%s: the lease %s was not renewed: %s", self.key, lease.id, error)


# A command is sent on a connection of its own, because it may wait. redis-py's execute_command would give up a waiting call
# after its socket_timeout, and ask for the whole wait again. A read that fails closes the connection, so the call leaves the
# line.


def _send(client, command, wait=0, pauses=PAUSES_S):
    pool = client.connection_pool
    end = time.monotonic() + wait
    for pause in (*pauses, None):
        block, patience = _wait(end)
        try:
            connection = pool.get_connection()
            try:
                connection.send_command(*command, *block)
                return connection.read_response(**patience)
            finally:
                pool.release(connection)
        except (redis.ConnectionError, redis.TimeoutError):
            if pause is None:
                raise
        time.sleep(pause)


async def _async_send(client, command, wait=0, pauses=PAUSES_S):
    pool = client.connection_pool
    end = time.monotonic() + wait
    for pause in (*pauses, None):
        block, patience = _wait(end)
        try:
            connection = await pool.get_connection()
            try:
                await connection.send_command(*command, *block)
                return await connection.read_response(**patience)
            finally:
                await pool.release(connection)
        except (redis.ConnectionError, redis.TimeoutError):
            if pause is None:
                raise
        await asyncio.sleep(pause)


def _wait(end):
    left = end - time.monotonic()
    return (("BLOCK", _duration(left)), {"timeout": left + MARGIN_S}) if left > 0 else ((), {})


def _duration(seconds):
    # The server accepts whole microseconds; a float may have more decimals.
    return f"{math.ceil(seconds * 1_000_000)}us"
