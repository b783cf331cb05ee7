"""What is different with threads: `_sync/_io.py` has the same names."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .._replies import is_reply

T = TypeVar("T")
CLIENTS = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
CLUSTER = redis.asyncio.RedisCluster
OTHERS = (redis.Redis, redis.RedisCluster)
OTHER = "Limits"
sleep = asyncio.sleep


# Connections


def settings(client: Any, of_node: bool) -> tuple[Any, dict[str, Any]]:
    """The class of the client's connections, and their settings."""
    if not of_node:
        pool = client.connection_pool
        return pool.connection_class, pool.connection_kwargs
    manager = client.nodes_manager
    node = next(iter({**manager.startup_nodes, **manager.nodes_cache}.values()))
    return node.connection_class, node.connection_kwargs


def once() -> Any:
    """Settings of a connection that tries once, and whose time-outs are those of this file."""
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": None}


async def connect(connection: Any, timeout: float, connect_timeout: float) -> None:
    # Not by settings of redis-py: with them it sends by asyncio.wait_for, which on Python 3.11 may swallow a cancellation.
    try:
        async with asyncio.timeout(connect_timeout):
            await connection.connect()
    except TimeoutError:
        _ask_another_sentinel(connection)
        raise redis.TimeoutError(f"no connection after {connect_timeout:g} s") from None
    except redis.ConnectionError as error:
        # redis-py wraps some replies of the server (NOAUTH).
        if isinstance(error.__cause__, redis.RedisError) and is_reply(error.__cause__):
            raise error.__cause__ from None
        raise


def _ask_another_sentinel(connection: Any) -> None:
    """Behind Sentinel, lets the next attempt to connect ask another Sentinel first. redis-py first asks the one that answered last. If
    that one is down, redis-py repeats the question for longer than this package waits for a connection."""
    manager = getattr(getattr(connection, "connection_pool", None), "sentinel_manager", None)
    if manager is not None:
        manager.sentinels = manager.sentinels[1:] + manager.sentinels[:1]


async def disconnect(connection: Any) -> None:
    with contextlib.suppress(redis.RedisError, OSError, RuntimeError):
        await connection.disconnect(nowait=True)


async def is_stale(connection: Any, idle: float) -> bool:
    """Whether something has arrived on a connection that was idle for so many seconds: usually its end."""
    if idle < 0.001:
        return False
    # The loop looks at its sockets, and then reads from them.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        return await connection.read_response(timeout=0) is not None
    except (redis.RedisError, OSError):
        return True


async def exchange(
    connection: Any, commands: Sequence[Sequence[Any]], timeout: float, wait: float | None, closed: Callable[[], bool]
) -> list[Any]:
    """Sends commands, and returns their replies, errors among them. The server may delay the last reply by `wait` seconds.
    `disconnect` ends that wait."""
    replies: list[Any] = []
    allowed = timeout
    try:
        async with asyncio.timeout(allowed) as timer:
            for words in commands:
                await connection.send_command(*words, check_health=False)
            for left in reversed(range(len(commands))):
                if wait is not None and not left:
                    allowed = wait + max(1.0, timeout)
                    timer.reschedule(asyncio.get_running_loop().time() + allowed)
                try:
                    replies.append(await connection.read_response())
                except redis.RedisError as error:
                    if not is_reply(error):
                        raise
                    replies.append(error)
    except TimeoutError:
        raise redis.TimeoutError(f"no reply after {allowed:g} s") from None
    return replies


end_wait = disconnect


class Places:
    """At most so many calls at a time. `inside` has a token for each of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.inside: set[object] = set()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    async def enter(self, token: object, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while len(self.inside) >= self._most:
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting.append(turn)
                    try:
                        await turn
                    except asyncio.CancelledError:
                        if turn.done() and not turn.cancelled():
                            self.ring()
                        raise
        except TimeoutError:
            raise redis.TimeoutError(f"all {self._most} connections are in use") from None
        self.inside.add(token)

    def ring(self) -> None:
        """A place is free."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


# Event loops


class PerLoop(Generic[T]):
    """One value for each event loop. What belongs to a closed one is dropped."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        value = self._values.get(loop)
        if value is None:
            for other in list(self._values):
                if other.is_closed():
                    del self._values[other]
            value = self._values[loop] = self._make()
        return value


class Turn:
    """What others wait for, until it is over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()

    def end(self) -> None:
        self._over.set()

    async def wait(self, seconds: float) -> None:
        if self._loop is asyncio.get_running_loop():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._over.wait()
        else:
            await asyncio.sleep(min(seconds, 0.01))

    @property
    def is_dead(self) -> bool:
        """Whether nobody can end it any more."""
        return self._loop.is_closed()


# Work beside the program


class Job:
    """A task that works beside the program until it ends, or is told to."""

    def __init__(self, jobs: Jobs, work: Callable[[Job], Awaitable[None]]) -> None:
        self._jobs, self._work = jobs, work
        self._told = asyncio.Event()

    def start(self) -> None:
        self._jobs.all.add(self)
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self._work(self)
        finally:
            self._jobs.all.discard(self)

    async def pause(self, seconds: float) -> bool:
        """Returns after so many seconds, or when the job is told to end: then it returns False."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        return not self._told.is_set()

    def end(self) -> None:
        self._told.set()


class Jobs:
    def __init__(self) -> None:
        self.all: set[Job] = set()
        # Work that goes on although the task that began it was cancelled.
        self._finishing: set[asyncio.Task[None]] = set()

    async def finish(self, work: Callable[[bool], Any]) -> None:
        """Does this to its end, also if its task is cancelled meanwhile. With threads, the argument is whether it begins
        again because of an exception of a signal's handler."""
        # A coroutine that is dropped must not wait any more, and its loop may have ended. redis-py may have made another
        # error of that.
        dropped = sys.exception()
        while dropped is not None and not isinstance(dropped, GeneratorExit):
            dropped = dropped.__cause__ or dropped.__context__
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        task: asyncio.Task[None] = asyncio.ensure_future(work(False))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        if dropped is None:
            await asyncio.shield(task)

    async def close(self, seconds: float) -> None:
        """Tells all to end, and waits until they have."""
        deadline = time.monotonic() + seconds
        # One may begin another.
        while (self.all or self._finishing) and (left := deadline - time.monotonic()) > 0:
            for job in list(self.all):
                job.end()
            await asyncio.wait({*self._finishing, *(job.task for job in self.all)}, timeout=left)


class Keeper:
    """Jobs that run while a block does. When one of them finds that the block must end, it cancels it."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._body: asyncio.Task[Any] | None = None
        self._cancelled = False
        # The cancellations of the task when the block began: one that was caught stays counted.
        self._before = 0

    def start(self, jobs: Jobs, work: Callable[[Job], Awaitable[None]]) -> None:
        self._body = asyncio.current_task()
        self._before = self._body.cancelling() if self._body else 0
        job = Job(jobs, work)
        self._jobs.append(job)
        job.start()
        job.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A job that was not told to end has found that the block must."""
        if self._body is not None and not task.cancelled() and not self._cancelled:
            self._cancelled = True
            self._body.cancel()

    async def stop(self, kind: type[BaseException] | None) -> bool:
        """Returns whether the block ends normally, or only because a job has cancelled it."""
        body, self._body = self._body, None
        for job in self._jobs:
            job.end()
        others = False
        if self._cancelled and body is not None:
            others = body.uncancel() > self._before
            if kind is None or not issubclass(kind, asyncio.CancelledError):
                # The block has ended before its cancellation has reached it.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        ours = self._cancelled and not others and kind is not None and issubclass(kind, asyncio.CancelledError)
        return ours or kind is None
