"""A gateway to a language model, over redis-py for asyncio: may a tenant send a call now? Several limits decide together, how
many calls run at a time among them, and all are charged by one RL.ALL or none is.

    gateway = Gateway(redis.asyncio.Redis())
    rules = [
        Rule("{gateway}:acme:running", "LEASE", 4, 30),               # at most 4 calls at a time; a dead one ends after 30 s
        Rule("{gateway}:acme:requests", "GCRA", 60, 60, cost=1),      # 60 calls a minute
        Rule("{gateway}:acme:tokens", "SLIDE", 20_000, 60),           # the estimate is charged, and settled afterwards
        Rule("{gateway}:tokens", "SLIDE", 100_000, 60),               # the same, over all tenants
    ]
    async with gateway.admit(rules, estimate=1200, wait=90) as call:  # waits in line; raises Denied after 90 s
        answer = await model.complete(prompt, max_tokens=1000)
        call.used = answer.usage.total_tokens

While the block runs, its lease is renewed at each third of the ttl. When the lease is lost, the block is cancelled at its next
`await`, and LeaseLost is raised. A block must not block the event loop: then nothing is renewed, and nothing is cancelled.

At the end of the block:
  used is set            the charges of tokens become what was used: the rest of the estimate is free again at once, as if it
                         had never been charged; more than the estimate is taken now, whatever the limit
  no used, no exception  the estimate stays
  no used, an exception  everything is given back. Cancelling a task is such an exception
The keys are settled in the reverse order of the rules. So list the lease first: it is released last, and the next call of the
tenant finds the tokens settled. List the key last that most calls wait for.

The server holds the calls that wait, and grants them in the order of their arrival. A call that waits for its tenant's keys
delays no other tenant. Wait for longer than the longest period: the server denies a call at once if its units will not be free
in time by themselves, although another call may settle to less, and free them earlier.

Each call has an id, by default a new uuid4. If a reply is lost, the call is repeated with the same id, and charged once. Pass
`id`, such as the id of a job, if a process that restarts repeats a call. Two calls at the same time need different ids, also
those of different tenants, because they share a key.
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


class Denied(Exception):
    """The limits of `keys` refused the call. Retry in `retry_after` seconds; None means that a retry is never granted. For a
    lease that is at most: holders may release earlier."""

    def __init__(self, keys, wait_ms):
        self.keys = keys
        self.retry_after = None if wait_ms < 0 else wait_ms / 1000
        when = "never" if self.retry_after is None else f"in {self.retry_after} s"
        super().__init__(f"{', '.join(keys)}: the limit is reached; retry {when}")


class LeaseLost(Exception):
    """A lease has lapsed, or could not be renewed until it did. Another call may have its units."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A key with its algorithm, limit, period and options, as in Rule("tokens", "BUCKET", 1000, 1, ("CAPACITY", 5000)). Without
    `cost` it counts tokens; a LEASE counts calls. The period of a LEASE is its ttl, in seconds."""

    key: str
    algorithm: str
    limit: int
    period: float | str
    options: tuple = ()
    cost: int | None = None

    @property
    def is_lease(self):
        return self.algorithm == "LEASE"

    @property
    def policy(self):
        return (self.limit, self.period, *self.options)

    def units(self, tokens):
        if self.cost is not None:
            return self.cost
        return 1 if self.is_lease else tokens

    def command(self, *words):
        return (f"RL.{self.algorithm}", self.key, *self.policy, *words)


class Call:
    """What the block of `admit` gets."""

    def __init__(self, id):
        self.id = id
        self.used = None


class Gateway:
    def __init__(self, client):
        self.client = client

    @contextlib.asynccontextmanager
    async def admit(self, rules, *, estimate, wait=0, id=None):
        call = Call(uuid.uuid4().hex if id is None else id)
        # What each key may have charged.
        charged = {rule: rule.units(estimate) for rule in rules}
        begin = time.monotonic()
        try:
            words = [word for rule in rules for word in (rule.algorithm, *rule.policy, "COST", charged[rule])]
            command = ("RL.ALL", len(rules), *(rule.key for rule in rules), *words, "ID", call.id)
            (granted, wait_ms, rows), repeated = await self._send(command, begin + wait)
            if not granted:
                if not repeated and id is None:
                    charged = {}  # A denied call charges nothing. What an earlier call with this id has charged would stay.
                raise Denied([rule.key for rule, row in zip(rules, rows) if not row[0]], wait_ms)
            # Not the estimate, if this id was charged with another one before.
            charged = {rule: row[0] for rule, row in zip(rules, rows)}
            async with self._held([rule for rule in rules if rule.is_lease], call.id):
                yield call
        except BaseException:
            if call.used is None:
                await self._settle_all(call.id, charged, lambda rule: 0)
                charged = {}
            raise
        finally:
            # Also if nothing changes, because the server remembers the id until then.
            await self._settle_all(call.id, charged, lambda rule: charged[rule] if call.used is None else rule.units(call.used))

    @contextlib.asynccontextmanager
    async def _held(self, leases, id):
        """Renews the leases while the block runs. When one is lost, cancels the block and raises LeaseLost."""
        if not leases:
            yield
            return
        now = asyncio.get_running_loop().time
        ttl = min(rule.period for rule in leases)
        lost = LeaseLost(f"the lease {id} is lost")

        async def renew():
            """Returns when the first lease lapses, if it is not renewed again."""
            lapses = now() + ttl
            for rule in leases:
                (held, *_), _ = await self._send(rule.command("ID", id, "RENEW"))
                if not held:
                    raise lost
            return lapses

        async def heartbeat(block):
            while True:
                await asyncio.sleep(ttl / 3)
                try:
                    block.reschedule(await renew())
                except LeaseLost:
                    block.reschedule(now())
                except redis.RedisError as error:
                    log.warning("the lease %s was not renewed: %s", id, error)

        # How long ago the server granted the leases is unknown; a lease that is renewed now lasts a ttl from now at least.
        lapses = await renew()
        try:
            async with asyncio.timeout_at(lapses) as block:
                renewals = asyncio.create_task(heartbeat(block))
                try:
                    yield
                finally:
                    renewals.cancel()
                    await asyncio.gather(renewals, return_exceptions=True)
        except TimeoutError:
            if block.expired():
                raise lost from None
            raise

    async def _settle_all(self, id, charged, used):
        for rule in reversed(charged):
            await self._settle(rule, id, charged[rule], used(rule))

    async def _settle(self, rule, id, charged, used):
        """Never raises redis-py's errors: the call has been made, and its answer counts more than its accounting."""
        end = ("RL.RELEASE", rule.key, id) if rule.is_lease else ("RL.SETTLE", rule.key, id, used)
        try:
            reply, repeated = await self._send(end)
            # The id is forgotten. But if the first reply was lost, then it is because that call has settled it.
            if reply is None and used > charged and not repeated:
                # Sent once: it has no id, so it would be charged twice.
                await self._send(rule.command("FORCE", used - charged), pauses=())
        except redis.RedisError as error:
            log.warning("%s: %s of %s were not settled to %s: %s", rule.key, charged, id, used, error)

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
