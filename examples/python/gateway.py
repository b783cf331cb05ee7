"""A gateway to a language model, over redis-py for asyncio. It decides whether a tenant may send a call now. Several limits
decide together, and one of them counts the calls that run at a time. One RL.ALL charges all limits or none.

    gateway = Gateway(redis.asyncio.Redis(socket_timeout=0.5, retry=None))
    rules = [
        Rule("{gateway}:acme:running", "LEASE", 4, 30),               # at most 4 calls at a time; a dead one ends after 30 s
        Rule("{gateway}:acme:requests", "GCRA", 60, 60, cost=1),      # 60 calls a minute
        Rule("{gateway}:acme:tokens", "SLIDE", 20_000, 60),           # the estimate is charged, and settled afterwards
        Rule("{gateway}:tokens", "SLIDE", 100_000, 60),               # the same, over all tenants
    ]
    async with gateway.admit(rules, estimate=1200, wait=90) as call:  # waits in line; raises Denied after 90 s
        answer = await model.complete(prompt, max_tokens=1000)
        call.used = answer.usage.total_tokens

While the block runs, admit renews its lease at each third of the ttl. When the lease is lost, admit cancels the block at its
next `await`, and raises LeaseLost. A block must not block the event loop, because then nothing can renew the lease or cancel
the block.

At the end of the block, admit settles the charges. It does the same if the block raises an exception or is cancelled:
  the block has set `used`        The charges of tokens become `used`. If that is less than the estimate, the rest is free again
                                  at once. If it is more, the difference is charged now, whatever the limit. A program that
                                  streams sets `used` again with each chunk.
  the block has not set `used`    The estimate stays charged, because the model may have done the work.
  the block has called `unused()` Everything is given back. Call it only if the model has not got the request, for example
                                  because the connection failed. If each exception gave the units back, a client that
                                  disconnects in time would avoid all limits.
The keys are settled in the reverse order of the rules. So list the lease first: then it is released last, and the next call of
the tenant finds the tokens settled. List the key last that most calls wait for, because it is then settled first.

Settling never raises redis-py's errors, and takes at most `patience` seconds, so it does not delay an answer for longer. It
runs in a task of its own: a second cancellation ends the wait for this task, but not the task.

The server holds the calls that wait, and grants them in the order of their arrival. A call that waits only for its tenant's
keys delays no other tenant. Let `wait` be longer than the longest period: the server denies a call at once if its units will
not be free in time by themselves. It does not count on other calls that settle to less.

Each call has an id, by default a new uuid4. If a reply is lost, admit repeats the command with the same id, and the server
charges it once. Pass `id`, such as the id of a job, if a process that restarts repeats a call. Two calls at the same time need
different ids, also those of different tenants, because they share a key.

Each waiting call occupies a connection of a second pool, which has the same settings as the client's pool and at most
`max_waiting` connections. The client's own pool serves the short commands. Each running call needs one of its connections at a
time, so let `max_connections` of the client (100 by default) be at least the number of calls that run in this process.
Before the program ends, `await gateway.aclose()` waits for the settlements that still run, and closes the second pool.
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import operator
import uuid

import redis
import redis.asyncio

log = logging.getLogger(__name__)

# The client waits for the reply to a waiting call this much longer than the wait that it asks the server for.
MARGIN_S = 5
# A command whose reply is lost is repeated after this pause.
PAUSE_S = 0.1
# The replies to a waiting call that ask the client to call again: the server became a replica, or the slot moves.
AGAIN = ("UNBLOCKED", "READONLY", "TRYAGAIN")


class Denied(Exception):
    """The limits of `keys` refused the call. Retry in `retry_after` seconds; None means that a retry is never granted. For a
    lease, this is the longest wait, because the holders may release their leases earlier."""

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
    `cost` it counts tokens; a LEASE counts calls. The period of a LEASE is its ttl, a number of seconds."""

    key: str
    algorithm: str
    limit: int
    period: float | str
    options: tuple = ()
    cost: int | None = None

    def __post_init__(self):
        # A list cannot be hashed, and the rules are the keys of a dict.
        object.__setattr__(self, "options", tuple(self.options))
        if self.is_lease and not isinstance(self.period, int | float):
            raise ValueError(f"the ttl of a LEASE is a number of seconds, not {self.period!r}")

    @property
    def is_lease(self):
        return self.algorithm.upper() == "LEASE"

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
    """The value that `admit` gives to its block."""

    def __init__(self, id):
        self.id = id
        self._used = None
        # True if the model may have got the request. If not, everything is given back.
        self._sent = False

    @property
    def used(self):
        """The tokens that the call has used: a whole number from 0, or None if the block does not know."""
        return self._used

    @used.setter
    def used(self, tokens):
        if tokens is not None and (tokens := operator.index(tokens)) < 0:
            raise ValueError(f"used is a whole number from 0, not {tokens}")
        self._used, self._sent = tokens, True

    def unused(self):
        """Says that the model has not got the request: everything is given back."""
        self._used, self._sent = None, False

    def _final(self, rule, charged):
        if not self._sent:
            return 0
        return charged if self._used is None else rule.units(self._used)


class Gateway:
    """`patience`: how many seconds an admission, besides its wait, and a settlement may take if the server does not answer."""

    def __init__(self, client, *, patience=1, max_waiting=10_000):
        self.client = client
        self.patience = patience
        pool = client.connection_pool
        settings = {**pool.connection_kwargs, "max_connections": max_waiting}
        self._waiting = redis.asyncio.ConnectionPool(connection_class=pool.connection_class, **settings)
        self._settling = set()

    async def aclose(self):
        """Waits for the calls that are being settled, and closes the connections of the waiting calls, but not the client."""
        await asyncio.gather(*self._settling)
        await self._waiting.aclose()

    @contextlib.asynccontextmanager
    async def admit(self, rules, *, estimate, wait=0, id=None):
        if not 0 <= wait <= 86_400:
            raise ValueError(f"wait is a number of seconds from 0 to 86400, not {wait}")
        call = Call(uuid.uuid4().hex if id is None else id)
        # The units that each key may have charged.
        charged = {rule: rule.units(estimate) for rule in rules}
        now = asyncio.get_running_loop().time()
        try:
            words = [word for rule in rules for word in (rule.algorithm, *rule.policy, "COST", charged[rule])]
            command = ("RL.ALL", len(rules), *(rule.key for rule in rules), *words, "ID", call.id)
            (granted, wait_ms, rows), repeated = await self._send(command, now + self.patience, end=now + wait)
            if not granted:
                if not repeated and id is None:
                    charged = {}  # A denied call charges nothing. What an earlier call with this id has charged would stay.
                raise Denied([rule.key for rule, row in zip(rules, rows) if not row[0]], wait_ms)
            # If this id was charged with another estimate before, the server reports the units of that charge.
            charged = {rule: row[0] for rule, row in zip(rules, rows)}
            async with self._held([rule for rule in rules if rule.is_lease], call.id):
                call._sent = True
                yield call
        finally:
            # This is done even if no charge changes, because a key remembers the id until it is settled or released.
            settling = asyncio.create_task(self._settle_all(call, charged))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            await asyncio.shield(settling)

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
            begin = now()
            for rule in leases:
                # The deadline is before the next renewal begins.
                (held, *_), _ = await self._send(rule.command("ID", id, "RENEW"), begin + min(self.patience, ttl / 4))
                if not held:
                    raise lost
            return begin + ttl

        async def heartbeat(block):
            while not block.expired():
                await asyncio.sleep(ttl / 3)
                try:
                    lapses = await renew()
                except LeaseLost:
                    lapses = now()
                except Exception as error:  # The next renewal may succeed. If none does, the block ends when the lease lapses.
                    log.warning("the lease %s was not renewed: %r", id, error)
                    continue
                if not block.expired():
                    block.reschedule(lapses)

        # The program does not know when the server granted the leases. A lease that is renewed now lasts for a ttl from now.
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
            if not block.expired():
                raise
        if block.expired():
            raise lost

    async def _settle_all(self, call, charged):
        deadline = asyncio.get_running_loop().time() + self.patience
        for rule in reversed(charged):
            await self._settle(rule, call.id, charged[rule], call._final(rule, charged[rule]), deadline)

    async def _settle(self, rule, id, charged, used, deadline):
        """Raises no exception: the call has been made, and its answer counts more than its accounting."""
        end = ("RL.RELEASE", rule.key, id) if rule.is_lease else ("RL.SETTLE", rule.key, id, used)
        try:
            reply, repeated = await self._send(end, deadline)
            # The key has forgotten the id, because its charge is past. If the first reply was lost, that command settled it.
            if reply is None and used > charged and not repeated:
                # This command is sent only once. It has no id, so the server would charge a repetition again.
                await self._send(rule.command("FORCE", used - charged), deadline, once=True)
        except Exception as error:
            log.warning("%s: %s of %s were not settled to %s: %r", rule.key, charged, id, used, error)

    async def _send(self, command, deadline, *, end=0, once=False):
        """Returns the reply, and whether the command had been sent before without a reply. Repeats a command without a reply
        until `deadline`, or sends it `once`. Waits in line until `end`; the time in line does not count for the deadline.

        A command is sent on a connection of its own, because it may wait. redis-py's execute_command would give up a waiting
        call after its socket_timeout, and ask for the whole wait again. A read that fails closes the connection, so the call
        leaves the line."""
        now = asyncio.get_running_loop().time
        sent = 0
        while True:
            left = end - now()
            # The server accepts whole microseconds; a float may have more decimals.
            block = ("BLOCK", f"{math.ceil(left * 1_000_000)}us") if left > 0 else ()
            pool = self._waiting if block else self.client.connection_pool
            joined = None
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    connection = await pool.get_connection()
                    try:
                        sent += 1
                        await connection.send_command(*command, *block)
                        if not block:
                            return await connection.read_response(), sent > 1
                        joined = now()
                        limit.reschedule(joined + left + MARGIN_S)
                        return await connection.read_response(timeout=math.inf), sent > 1
                    except redis.ResponseError as error:
                        if not block or not f"{error.status_code or ''} {error}".lstrip().startswith(AGAIN):
                            raise
                        # The server has charged nothing. A new connection may find the new primary.
                        await connection.disconnect()
                        sent -= 1
                        deadline = now() + self.patience
                    finally:
                        await asyncio.shield(pool.release(connection))
            except (redis.ConnectionError, redis.TimeoutError, TimeoutError) as error:
                deadline += now() - joined if joined else 0
                if once or now() + PAUSE_S >= deadline:
                    if isinstance(error, redis.RedisError):
                        raise
                    raise redis.TimeoutError(f"{command[0]}: no reply in time") from error
            await asyncio.sleep(PAUSE_S)
