"""A budget of tokens for calls of a language model, over redis-py for asyncio. What a call costs is known only afterwards, so
an estimate is charged before the call, and settled to the tokens that it really used.

    budget = Budget(
        redis.asyncio.Redis(),
        Limit("llm:tokens", "SLIDE", 100_000, 60),                # the estimate is charged, and settled afterwards
        Limit("llm:requests", "SLIDE", 500, 60, cost=1),          # each call costs 1
    )
    async with budget.charge(estimate=1200, wait=90) as charge:   # waits in line; raises OverBudget after 90 s
        answer = await model.complete(prompt, max_tokens=1000)
        charge.used = answer.usage.total_tokens

At the end of the block:
  used is set            the charge becomes what was used: the rest of the estimate is free again at once, as if it had never
                         been charged; more than the estimate is taken now, whatever the limit, and later calls wait for it
  no used, no exception  the estimate stays
  no used, an exception  everything is given back. Cancelling a task is such an exception

If a call fails halfway and has used tokens, as an interrupted stream has, set `used` before the exception leaves the block.

All limits are charged, or none: they are taken in order, each with what is left of the wait, and if one is denied, those
before it are given back. Put the limit that is usually the first to run out first. The server holds the calls that wait,
first come first served for each key. Wait for longer than the period, 90 seconds for a limit per minute: the server denies a
call at once if its units will not be free in time by themselves, although another call may settle to less, and free them
earlier.

Each charge has an id, by default a new uuid4. A call whose reply is lost is repeated with the same id, and charged once.
Pass `id`, such as the id of a job, if a process that restarts repeats a request: the charge that it made before its restart
is still there then, and is not made again. Two charges at the same time need different ids.

The server remembers an id until its charge is past: with SLIDE for a period, with FIXED until the window ends, with GCRA and
BUCKET until nothing is used any more. Then there is nothing to give back, and only what was used above the estimate is
charged, with FORCE.
"""

import asyncio
import contextlib
import dataclasses
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


class OverBudget(Exception):
    """The call was denied. Retry in `retry_after` seconds; None means that a retry is never granted."""

    def __init__(self, key, limit, wait_ms):
        self.key = key
        self.retry_after = None if wait_ms < 0 else wait_ms / 1000
        when = "never" if self.retry_after is None else f"in {self.retry_after} s"
        super().__init__(f"{key}: the limit of {limit} is reached; retry {when}")


@dataclasses.dataclass(frozen=True)
class Limit:
    """A key with its algorithm, limit, period and options, as in Limit("llm:tokens", "BUCKET", 1000, 1, ("CAPACITY", 5000)).
    Without `cost` it counts tokens."""

    key: str
    algorithm: str
    limit: int
    period: float | str
    options: tuple = ()
    cost: int | None = None

    def command(self, *amount):
        return (f"RL.{self.algorithm}", self.key, self.limit, self.period, *self.options, *amount)


class Charge:
    """What the block of `charge` gets."""

    def __init__(self, id):
        self.id = id
        self.used = None


class Budget:
    def __init__(self, client, *limits):
        self.client = client
        self.limits = limits

    @contextlib.asynccontextmanager
    async def charge(self, estimate, *, wait, id=None):
        charge = Charge(uuid.uuid4().hex if id is None else id)
        end = time.monotonic() + wait
        taken = {}
        try:
            for limit in self.limits:
                # Before the call, because a call that fails may have been charged.
                taken[limit] = estimate if limit.cost is None else limit.cost
                command = limit.command("COST", taken[limit], "ID", charge.id)
                (granted, capacity, _, wait_ms, _), _ = await self._send(command, end)
                if not granted:
                    del taken[limit]  # A denied call has charged nothing.
                    raise OverBudget(limit.key, capacity, wait_ms)
                # Not the estimate, if this id was charged with another one before.
                taken[limit] = granted
            yield charge
        except BaseException:
            if charge.used is None:
                for limit, charged in taken.items():
                    await self._settle(limit, charge.id, charged, 0)
                taken = {}
            raise
        finally:
            for limit, charged in taken.items():
                used = charged if charge.used is None or limit.cost is not None else charge.used
                # Also if nothing changes, because the server remembers the id until then.
                await self._settle(limit, charge.id, charged, used)

    async def _settle(self, limit, id, charged, used):
        """Never raises redis-py's errors: the call has been made, and its answer counts more than its accounting."""
        try:
            reply, repeated = await self._send(("RL.SETTLE", limit.key, id, used))
            # The id is forgotten. But if the first reply was lost, then it is because that call has settled it.
            if reply is None and used > charged and not repeated:
                # Sent once: it has no id, so it would be charged twice.
                await self._send(limit.command("FORCE", used - charged), pauses=())
        except redis.RedisError as error:
            log.warning("%s: %s of %s were not settled to %s: %s", limit.key, charged, id, used, error)

    async def _send(self, command, end=0, pauses=PAUSES_S):
        """Returns the reply, and whether the command had been sent before without a reply. Waits in line until `end`.

        A command is sent on a connection of its own, because it may wait. redis-py's execute_command would give up a waiting
        call after its socket_timeout, and ask for the whole wait again. A read that fails closes the connection, so the call
        leaves the line."""
        pool = self.client.connection_pool
        sent = 0
        for pause in (*pauses, None):
            left = end - time.monotonic()
            # The server accepts whole microseconds; a float may have more decimals.
            block = ("BLOCK", f"{math.ceil(left * 1_000_000)}us") if left > 0 else ()
            patience = {"timeout": left + MARGIN_S} if left > 0 else {}
            try:
                connection = await pool.get_connection()
                try:
                    sent += 1
                    await connection.send_command(*command, *block)
                    return await connection.read_response(**patience), sent > 1
                finally:
                    await pool.release(connection)
            except (redis.ConnectionError, redis.TimeoutError):
                if pause is None:
                    raise
            await asyncio.sleep(pause)
