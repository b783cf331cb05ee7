"""What is different with asyncio: `_async/_io.py` has the same names.

A handler of a signal may raise an exception at any moment in the main thread. So locks are taken by `with` only, waits have
time-outs, and what must be undone is undone by one call of a function in C, before which no handler runs."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from .._replies import is_reply

T = TypeVar("T")
CLIENTS = (redis.Redis, redis.RedisCluster)
CLUSTER = redis.RedisCluster
OTHERS = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
OTHER = "AsyncLimits"
# How often a call that waits looks whether the program has closed its limits, and a thread whether it was forgotten.
LOOK_S = 0.05
sleep = time.sleep


# Connections


def settings(client: Any, of_node: bool) -> tuple[Any, dict[str, Any]]:
    """The class of the client's connections, and their settings."""
    if of_node:
        client = client.get_redis_connection(client.get_nodes()[0])
    return client.connection_pool.connection_class, client.connection_pool.connection_kwargs


def once() -> Any:
    """Settings of a connection that tries once."""
    return {"retry": Retry(NoBackoff(), 0)}


def connect(connection: Any, timeout: float, connect_timeout: float) -> None:
    # Of the two, redis-py takes the first to connect, and the second to wait for replies.
    connection.socket_connect_timeout, connection.socket_timeout = connect_timeout, timeout
    connection.connect()


def disconnect(connection: Any) -> None:
    with contextlib.suppress(redis.RedisError, OSError):
        connection.disconnect()


def is_stale(connection: Any, idle: float) -> bool:
    """Whether something has arrived on a connection that nobody uses: usually its end."""
    try:
        return bool(connection.can_read(timeout=0))
    except (redis.RedisError, OSError):
        return True


def exchange(
    connection: Any, commands: Sequence[Sequence[Any]], timeout: float, wait: float | None, closed: Callable[[], bool]
) -> list[Any]:
    """Sends commands, and returns their replies, errors among them. The server may delay the last reply by `wait` seconds,
    unless the limits are `closed` meanwhile."""
    replies: list[Any] = []
    for words in commands:
        connection.send_command(*words, check_health=False)
    for left in reversed(range(len(commands))):
        allowed = timeout if wait is None or left else wait + max(1.0, timeout)
        end = time.monotonic() + allowed
        while not connection.can_read(timeout=max(0, min(end - time.monotonic(), LOOK_S if wait is not None else timeout))):
            if time.monotonic() >= end:
                raise redis.TimeoutError(f"no reply after {allowed:g} s")
            if closed():
                raise redis.ConnectionError("closed")
        try:
            replies.append(connection.read_response())
        except redis.RedisError as error:
            if not is_reply(error):
                raise
            replies.append(error)
    return replies


def end_wait(connection: Any) -> None:
    """The thread that waits sees it by itself."""


class Places:
    """At most so many calls at a time. `inside` has a token for each of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()
        self.inside: set[object] = set()
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    def enter(self, token: object, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        bell = threading.Lock()
        bell.acquire()
        while True:
            with self._lock:
                if len(self.inside) < self._most:
                    self.inside.add(token)
                    return
                if bell not in self._waiting:
                    self._waiting.append(bell)
            left = deadline - time.monotonic()
            if left <= 0:
                raise redis.TimeoutError(f"all {self._most} connections are in use")
            bell.acquire(timeout=min(left, LOOK_S))

    def ring(self) -> None:
        """A place is free."""
        with contextlib.suppress(IndexError, RuntimeError):
            self._waiting.popleft().release()


# Event loops


class PerLoop(Generic[T]):
    """Threads share one value."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._value = make()

    def get(self) -> T:
        return self._value


class Turn:
    """What others wait for, until it is over."""

    is_dead = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def end(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """May return before the end: look whether it has come."""
        if self._lock.acquire(timeout=min(seconds, LOOK_S)):
            # The next one that waits.
            self.end()


# Work beside the program


class Job:
    """A thread that works beside the program until it ends, or is told to."""

    def __init__(self, jobs: Jobs, work: Callable[[Job], None]) -> None:
        self._jobs, self._work = jobs, work
        self._told = False
        self._bell = Turn()
        self._thread = threading.Thread(target=self._run, daemon=True, name="redis-rl")

    def start(self) -> None:
        self._jobs.all.add(self)
        try:
            self._thread.start()
        except BaseException:
            # It may run nevertheless, if a signal's handler has raised this.
            self._jobs.all.discard(self)
            raise

    def _run(self) -> None:
        self._jobs.all.add(self)
        try:
            self._work(self)
        finally:
            self._jobs.all.discard(self)

    def pause(self, seconds: float) -> bool:
        """Returns after so many seconds, or when the job is told to end: then it returns False."""
        if not self._told and self._bell._lock.acquire(timeout=seconds):
            self._bell.end()
        return not self._told

    def end(self) -> None:
        self._told = True
        self._bell.end()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)


class Jobs:
    def __init__(self) -> None:
        self.all: set[Job] = set()

    def finish(self, work: Callable[[bool], Any]) -> None:
        """Does this to its end. If a signal raises an exception meanwhile, this begins again, with True."""
        try:
            work(False)
        except BaseException:
            work(True)
            raise

    def close(self, seconds: float) -> None:
        """Tells all to end, and waits until they have."""
        deadline = time.monotonic() + seconds
        # One may begin another.
        while self.all and time.monotonic() < deadline:
            for job in list(self.all):
                job.end()
                job.join(LOOK_S)


class Keeper:
    """Jobs that run while a block does."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def start(self, jobs: Jobs, work: Callable[[Job], None]) -> None:
        job = Job(jobs, work)
        self._jobs.append(job)
        job.start()

    def stop(self, kind: type[BaseException] | None) -> bool:
        """Returns whether the block ends normally."""
        for job in self._jobs:
            job.end()
        return kind is None
