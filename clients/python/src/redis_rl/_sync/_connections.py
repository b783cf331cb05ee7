# Made by make_sync.py. Do not change it here.
"""Connections to the servers of a client, and the calls on them.

The package has connections of its own, made with the settings of the client. So nothing repeats a call behind its back, a
call that waits does not occupy a connection of the client's pool, and the client's time-outs do not end a wait."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from .._down import Breaker, log
from .._errors import Closed
from .._policy import Use, Word, us_text
from .._replies import AGAIN, RIGHTS, Lost, code_of, is_reply, keeps_connection, translated, unavailable
from .._topology import Address, Topology, key_slot
from . import _io as io

# The pause before a call is repeated.
PAUSE_S = 0.05
# Settings of a connection that belong to the pool that it was made for, or that repeat commands.
_DROPPED = ("maint", "oss_cluster_maint", "orig_", "retry", "health_check_interval", "cache")


class _Node:
    """The connections to one server. At most `most` of them carry calls that do not wait; a call that waits has its own."""

    def __init__(self, calls: Calls, address: Address | None) -> None:
        self._calls, self._address = calls, address
        self.breaker = Breaker()
        self._places = io.Places(calls.most)
        # Those that nobody uses, and since when.
        self._idle: list[tuple[Any, float]] = []
        self.waiting: set[Any] = set()

    def ask(
        self, commands: Sequence[Sequence[Word]], wait: float | None, deadline: float, must: bool
    ) -> list[Any]:
        """Sends commands on one connection, and returns their replies, errors among them. Raises Lost. `must`: also while
        the server counts as down."""
        calls, breaker, places = self._calls, self.breaker, self._places
        probe = breaker.cause is not None
        if not must and (cause := breaker.refuses(2 * calls.total)):
            raise Lost(cause, False)
        token, connection = object(), None
        connected = sent = whole = False
        try:
            if wait is None:
                places.enter(token, self._left(calls.timeout, deadline))
            connection = self._take()
            if connection is None:
                connection = calls.connection(self._address)
                seconds = self._left(calls.connect_timeout, deadline)
                whole = seconds == calls.connect_timeout
                io.connect(connection, min(calls.timeout, seconds), seconds)
            connected = True
            seconds = self._left(calls.timeout, deadline)
            whole = seconds == calls.timeout
            if probe and wait is not None:
                # The answer to a call that waits may take long.
                io.exchange(connection, [("PING",)], seconds, None, calls.is_closed)
                breaker.succeeded()
            sent = True
            if wait is not None:
                self.waiting.add(connection)
            replies = io.exchange(connection, commands, seconds, wait, calls.is_closed)
        except BaseException as error:
            if connection is not None:
                io.disconnect(connection)
            found = isinstance(error, (redis.RedisError, OSError)) and not isinstance(error, redis.DataError)
            if not found:
                # The program has ended the call, which says nothing about the server.
                if probe and not must:
                    breaker.ended()
                raise
            if connection is not None:
                # They lead to the same server.
                self.drop()
                # It had its time, and not only what was left of another one.
                late = isinstance(error, redis.TimeoutError) and whole
                refused = not connected and not isinstance(error, redis.TimeoutError)
                if late or refused and (not is_reply(error) or code_of(error) in RIGHTS):
                    breaker.failed(error, probe and not must)
            raise Lost(error, sent) from error
        finally:
            places.inside.discard(token)
            self.waiting.discard(connection)
            places.ring()
        breaker.succeeded()
        if calls.is_closed() or len(self._idle) >= calls.most or any(
            isinstance(reply, Exception) and not keeps_connection(reply) for reply in replies
        ):
            io.disconnect(connection)
        else:
            self._idle.append((connection, time.monotonic()))
        return replies

    def _left(self, seconds: float, deadline: float) -> float:
        left = min(seconds, deadline - time.monotonic())
        if left <= 0:
            raise redis.TimeoutError("no time is left")
        return left

    def _unused(self) -> Iterator[tuple[Any, float]]:
        # Another thread may take the last one.
        with contextlib.suppress(IndexError):
            while True:
                yield self._idle.pop()

    def _take(self) -> Any:
        for connection, since in self._unused():
            if not io.is_stale(connection, time.monotonic() - since):
                return connection
            io.disconnect(connection)
        return None

    def drop(self) -> None:
        """Closes the connections that nobody uses."""
        for connection, _ in self._unused():
            io.disconnect(connection)


class Calls:
    """Calls to the servers of a client."""

    def __init__(self, client: Any, timeout: float, connect_timeout: float, most: int, is_closed: Callable[[], bool]) -> None:
        self._client = client
        self.timeout, self.connect_timeout, self.most = timeout, connect_timeout, most
        self.is_closed = is_closed
        self.topology = Topology(client) if isinstance(client, io.CLUSTER) else None
        self.jobs = io.Jobs()
        self._nodes: dict[Address | None, _Node] = {}

    @property
    def total(self) -> float:
        """How long a call may take that is repeated after a lost connection."""
        return self.timeout + self.connect_timeout

    @property
    def is_down(self) -> bool:
        return any(node.breaker.cause for node in list(self._nodes.values()))

    def call(
        self,
        words: Sequence[Word],
        key: bytes,
        *,
        repeat: bool = False,
        must: bool = False,
        wait_us: int = 0,
        before: Sequence[Sequence[Word]] = (),
        deadline: float | None = None,
    ) -> tuple[Any, bool]:
        """Returns the reply, and whether the command may have been executed before without one.

        repeat  sends it again after a lost connection: it has an id. Without an id, only a wait that the server has ended goes on
        must    also while the server counts as down, and after the limits were closed
        before  commands that are sent before it on the same connection"""
        begin = time.monotonic()
        topology, slot = self.topology, key_slot(key) if self.topology else 0
        end = begin + wait_us / 1_000_000
        until = deadline
        if until is None:
            until = end + (self.timeout if must and self.is_down else self.total)
        lost, ended, first, redirects = False, False, True, 0
        # Where the last reply has sent the command, and what goes before it there.
        target: Address | None = None
        asking: list[Sequence[Word]] = []
        while True:
            if not must and self.is_closed():
                raise Closed("the limits are closed")
            address, target = target, None
            if topology and address is None:
                if topology.stale:
                    self._refresh(topology, min(until, time.monotonic() + self.total))
                address = topology.address(slot)
            left_us = wait_us if first else max(0, int((end - time.monotonic()) * 1_000_000))
            first = False
            command = (*words, "BLOCK", us_text(left_us)) if left_us else words
            error: Exception
            again = sent = False
            try:
                wait = left_us / 1_000_000 if left_us else None
                # A call that is not repeated ends by its own time-outs.
                replies = self._node(address).ask([*before, *asking, command], wait, until, must or lost or ended)
                if not isinstance(replies[-1], Exception):
                    return replies[-1], lost
                error, asking = replies[-1], []
                code = code_of(error)
                if topology and code in ("MOVED", "ASK") and address is not None and redirects < 16:
                    redirects += 1
                    moved, target = topology.target(error, address)
                    if code == "MOVED":
                        topology.follow(moved, target)
                    else:
                        asking = [("ASKING",)]
                    continue
                if code == "NOPOLICY" and isinstance(words, Use):
                    words, before = words.default, ()
                    continue
                if code not in AGAIN:
                    raise translated(error, words, key) from error
                ended = ended or left_us > 0 and code in ("TRYAGAIN", "UNBLOCKED")
                lost = lost or repeat and code == "UNBLOCKED"
                again = code == "TRYAGAIN"
            except Lost as broken:
                error, asking, sent = broken, [], broken.sent
                # Not after a time-out: the server may hang.
                lost = lost or (broken.sent and not isinstance(broken.cause, redis.TimeoutError))
                if must and not lost:
                    until = min(until, begin + self.timeout)
            if topology:
                topology.stale = True
            if not must and self.is_closed():
                raise Closed("the limits were closed while the call waited") from error
            now = time.monotonic()
            goes_on = again or lost or must if repeat else ended and not sent
            if not goes_on or now + PAUSE_S >= until:
                if isinstance(error, Lost):
                    raise unavailable(error.cause, lost or error.sent) from error.cause
                raise unavailable(error, lost) from error
            io.sleep(PAUSE_S)

    def _refresh(self, topology: Topology, until: float) -> None:
        """Reads the map of the cluster again, from the first node that answers. If none does, the old one stays."""
        for address in topology.to_ask():
            if time.monotonic() >= until:
                return
            try:
                [reply] = self._node(address).ask([("CLUSTER", "SLOTS")], None, until, False)
                topology.update(reply, address)
            except (Lost, AssertionError, ValueError):
                continue
            if not topology.stale:
                return

    def _node(self, address: Address | None) -> _Node:
        node = self._nodes.get(address)
        # `setdefault` decides if two threads make one.
        return node or self._nodes.setdefault(address, _Node(self, address))

    def connection(self, address: Address | None) -> Any:
        connection_class, kwargs = io.settings(self._client, address is not None)
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith(_DROPPED)}
        kwargs.update(io.once())
        if address is not None:
            kwargs["host"], kwargs["port"] = address
        return connection_class(**kwargs)

    def beside(self, work: Callable[[io.Job], Any]) -> bool:
        """Does this beside the program. Returns whether it was begun."""
        try:
            io.Job(self.jobs, work).start()
        except RuntimeError as error:
            log.warning("work beside the program was not begun: %s", error)
            return False
        return True

    def close(self) -> None:
        """Ends the calls that wait and the work beside the program, and closes the connections."""
        for node in list(self._nodes.values()):
            for connection in list(node.waiting):
                io.end_wait(connection)
        self.jobs.close(2 * self.total)
        for node in list(self._nodes.values()):
            node.drop()


