"""A decorator and a context manager over redis-py, for threads and for asyncio. The server decides, and holds waiting calls.

    limit = Limit(redis.Redis(), "GCRA", 10, "1m")         # or redis.asyncio.Redis(), then use async below

    @limit("user:{user_id}")                               # denied: raises RateLimited, which has retry_after in seconds
    def show(user_id): ...

    @limit("partner-api", wait=30)                         # waits for its turn, first come first served; raises after 30 s
    def call(): ...

    with limit(f"export:{user}", cost=5) as reply:         # the five integers of the reply, by name
        print(reply.remaining)

A decorator's key is a format string over the arguments of the function; write a literal brace twice. The key in Redis is the
result, without a prefix. Two limits that should count separately need different keys, as in "minute:{user_id}" and
"day:{user_id}".

When Redis gives no decision (it is down, slow, loading or full), on_down="closed", the default, raises redis-py's error.
on_down="open" logs the error and goes on, uncounted, with None as the reply. In both modes an invalid cost, wait or key is an
error.
"""

import dataclasses
import functools
import inspect
import logging
import math
from typing import NamedTuple

import redis
import redis.asyncio

log = logging.getLogger(__name__)

MAX_COST = 1_000_000_000_000
MAX_WAIT_S = 86_400

# The client waits for a reply this much longer than the wait that it asks the server for.
MARGIN_S = 5


class Reply(NamedTuple):
    granted: int
    limit: int
    remaining: int
    wait_ms: int
    reset_ms: int


class RateLimited(Exception):
    """The call was denied. Retry in `retry_after` seconds; None means that a retry is never granted."""

    def __init__(self, key, reply):
        self.key = key
        self.reply = reply
        self.retry_after = None if reply.wait_ms < 0 else reply.wait_ms / 1000
        when = "never" if self.retry_after is None else f"in {self.retry_after} s"
        super().__init__(f"{key}: the limit of {reply.limit} is reached; retry {when}")


class Limit:
    """An algorithm with its limit, period and options, as in `Limit(client, "GCRA", 10, "1m", "BURST", 5)`."""

    def __init__(self, client, algorithm, limit, period, *options, on_down="closed"):
        if on_down not in ("open", "closed"):
            raise ValueError("on_down is 'open' or 'closed'")
        self.client = client
        self.is_async = isinstance(client, redis.asyncio.Redis)
        self.algorithm = algorithm
        self.policy = (limit, period, *options)
        self.on_down = on_down

    def __call__(self, key, *, cost=1, wait=None):
        return Guard(self, key, cost, wait)


@dataclasses.dataclass(frozen=True)
class Guard:
    limit: Limit
    key: str
    cost: int
    wait: float | None

    # Checked here, because an error reply of the server would let the call through when on_down is "open".
    def __post_init__(self):
        if not (isinstance(self.cost, int) and 1 <= self.cost <= MAX_COST):
            raise ValueError(f"cost is a whole number from 1 to {MAX_COST}")
        if not (self.wait is None or 0 < self.wait <= MAX_WAIT_S):
            raise ValueError(f"wait is a number of seconds, above 0 and at most {MAX_WAIT_S}")

    def __call__(self, function):
        if inspect.iscoroutinefunction(function) != self.limit.is_async:
            raise TypeError("an async function takes a Limit with redis.asyncio.Redis, another one with redis.Redis")
        signature = inspect.signature(function)

        def guard(args, kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return dataclasses.replace(self, key=self.key.format(**bound.arguments))

        if self.limit.is_async:

            @functools.wraps(function)
            async def limited(*args, **kwargs):
                async with guard(args, kwargs):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def limited(*args, **kwargs):
                with guard(args, kwargs):
                    return function(*args, **kwargs)

        return limited

    # A command is sent once, on a connection of its own. redis-py's execute_command would repeat the command when a reply is
    # lost, which charges twice, and would give up a waiting call after its socket_timeout. A read that fails closes the
    # connection.

    def __enter__(self):
        pool = self.limit.client.connection_pool
        try:
            connection = pool.get_connection()
            try:
                connection.send_command(*self._command())
                return self._decide(connection.read_response(**self._patience()))
            finally:
                pool.release(connection)
        except redis.RedisError as error:
            return self._undecided(error)

    async def __aenter__(self):
        pool = self.limit.client.connection_pool
        try:
            connection = await pool.get_connection()
            try:
                await connection.send_command(*self._command())
                return self._decide(await connection.read_response(**self._patience()))
            finally:
                await pool.release(connection)
        except redis.RedisError as error:
            return self._undecided(error)

    def __exit__(self, *_):
        pass

    async def __aexit__(self, *_):
        pass

    def _command(self):
        # The server accepts whole microseconds; a float may have more decimals.
        block = () if self.wait is None else ("BLOCK", f"{math.ceil(self.wait * 1_000_000)}us")
        return (f"RL.{self.limit.algorithm}", self.key, *self.limit.policy, "COST", self.cost, *block)

    def _patience(self):
        return {} if self.wait is None else {"timeout": self.wait + MARGIN_S}

    def _decide(self, integers):
        reply = Reply(*integers)
        if not reply.granted:
            raise RateLimited(self.key, reply)
        return reply

    def _undecided(self, error):
        # A DataError is an argument that redis-py can't send, which does not mean that Redis is down.
        if self.limit.on_down == "closed" or isinstance(error, redis.DataError):
            raise error
        log.warning("%s goes on uncounted: %s", self.key, error)
