"""Blocks of work: what they are charged or hold when they begin, and what becomes of that when they end."""

from __future__ import annotations

import functools
import inspect
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from .._decision import AllDecision, Decision
from .._down import log
from .._errors import LeaseLost, Unavailable
from .._keys import key_format
from .._policy import Duration, Id, Key, Lease, checked_cost, checked_key, checked_wait
from .._replies import shown
from . import _io as io

if TYPE_CHECKING:
    from ._limits import AsyncLeaseLimit, AsyncLimit, Together

T = TypeVar("T")
P = ParamSpec("P")


class _AsyncLease:
    """A lease of a block."""

    def __init__(self, limit: AsyncLeaseLimit, key: bytes, id: Id) -> None:
        self.limit, self.key, self.id = limit, key, id
        assert isinstance(limit.policy.default, Lease)
        self.ttl = limit.policy.default.ttl
        # The lease lasts at least until then, by time.monotonic(), unless a renewal was denied.
        self.ends = float("-inf")
        self.lost = False

    def check(self) -> None:
        # For good: what a late reply says is too late.
        self.lost = self.lost or time.monotonic() >= self.ends
        if self.lost:
            raise LeaseLost(f"{self.limit.name}: the lease {shown(self.id)} is lost")

    def granted(self, decision: Decision, begin: float) -> None:
        """A call that began at `begin` was granted. A policy key may have a shorter ttl; SHADOW may grant without a lease."""
        self.ttl = min(self.ttl, decision.reset or self.ttl)
        self.ends = begin + self.ttl

    async def begin(self, decision: Decision, begin: float) -> None:
        """The lease was granted to a call that began at `begin`. When the server has granted it is unknown: so one that had
        to wait is renewed, and lasts a ttl from now."""
        self.granted(decision, begin)
        if time.monotonic() > begin + self.ttl / 3:
            self.ends = float("inf")
            try:
                await self.renew()
            except Unavailable as error:
                log.warning("%s: the lease %s was not renewed: %s", self.limit.name, shown(self.id), error)
                self.ends = begin + self.ttl
                self.check()

    async def renew(self) -> None:
        """Renews the lease, or raises LeaseLost."""
        begin = time.monotonic()
        deadline = begin + min(self.limit._of._calls.total, self.ttl / 4)
        renewed = await self.limit._renewed(self.key, self.id, deadline)
        self.lost = self.lost or not renewed
        self.check()
        self.granted(renewed, begin)


async def _renew(lease_of: Callable[[], _AsyncLease | None], job: io.Job) -> None:
    """Renews a lease at each third of its ttl. Returns when it is lost, or nobody holds it any more: it is dropped without
    its end if a signal's handler raises an exception at the moment when its block ends."""
    lease = lease_of()
    name = lease.limit.name if lease else ""
    while lease is not None:
        left = lease.ends - time.monotonic()
        if lease.lost or left <= 0:
            lease.lost = True
            return
        seconds, lease = min(lease.ttl / 3, left), None
        if not await job.pause(seconds):
            return
        lease = lease_of()
        try:
            if lease is not None and time.monotonic() < lease.ends:
                await lease.renew()
        except LeaseLost:
            return
        except Exception as error:
            # Whatever it is, the next renewal may succeed. If none does, the lease is lost when it ends.
            log.warning("%s: a lease was not renewed: %s", name, error)


class _AsyncBlock:
    """A block that is charged by an id: estimates are settled at its end, and tasks renew its leases until then. If anything but
    an error of this package ends its beginning, what the server may have granted is given back. A process that was forked
    within it leaves all of it to its parent."""

    def __init__(self, call: Together, wait_us: int) -> None:
        assert call.id is not None
        self.id: Id = call.id
        self._call, self._of, self._wait_us = call, call.of, wait_us
        self._leases = [_AsyncLease(limit, key, self.id) for limit, key in call.leases]
        self._keeper = io.Keeper()
        self._used: int | None = None
        self._all: AllDecision
        self._process = -1

    @property
    def used(self) -> int | None:
        """What the work has used: a whole number from 0, or None as long as it is unknown."""
        return self._used

    @used.setter
    def used(self, units: int | None) -> None:
        self._used = None if units is None else checked_cost(units, 0)

    def check(self) -> None:
        """Raises LeaseLost if a lease of this block has ended. Asks no server."""
        if self._all.source != "down":
            for lease in self._leases:
                lease.check()

    async def renew(self) -> None:
        """Renews the leases now. Raises LeaseLost if one is lost."""
        for lease in self._leases:
            await lease.renew()

    async def _leave(self, failed: bool, again: bool) -> None:
        """Settles and releases. `again`: an exception of a signal's handler has interrupted this before."""
        if self._all.source == "down":
            # What the server may have charged without a decision was given back when the block began.
            return
        call, limits = self._call, self._of
        # One deadline for all keys, so that a server that is down does not take the time of each.
        deadline = time.monotonic() + (limits._timeout if limits._calls.is_down else limits._calls.total)
        rows = list(zip(call.limits, self._all.decisions, call.estimated))
        for (limit, key), decision, estimated in reversed(rows):
            if isinstance(limit.policy.default, Lease):
                await limits._released(limit, key, self.id, deadline)
                continue
            used = decision.granted
            if estimated and (failed or self._used is not None):
                used = self._used or 0
            await limits._settled(limit, key, self.id, decision.granted, used, again, deadline)

    async def __aenter__(self) -> Self:
        self._process, begin = os.getpid(), time.monotonic()
        try:
            self._all = (await self._call.charged(self._wait_us, True)).raise_if_denied()
            if self._all.source != "down":
                decisions = [each for each in self._all.decisions if isinstance(each.policy.default, Lease)]
                for lease, decision in zip(self._leases, decisions):
                    await lease.begin(decision, begin)
                    self._keeper.start(self._of._calls.jobs, functools.partial(_renew, weakref.ref(lease)))
        except BaseException as error:
            await self._keeper.stop(None)
            await self._call.abandoned(error)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process != os.getpid():
            return
        try:
            ours = await self._keeper.stop(kind)
        finally:
            await self._of._calls.jobs.finish(lambda again: self._leave(kind is not None, again))
        if ours:
            try:
                self.check()
            except LeaseLost as lost:
                raise lost from None


class AsyncAdmission(_AsyncBlock):
    """What the block of `limits.admit` gets. Set `used`, or leave the estimate as it is. Tasks renew its leases, as those of
    `hold`."""

    @property
    def decision(self) -> AllDecision:
        return self._all

    @property
    def decisions(self) -> list[Decision]:
        return list(self._all.decisions)


class AsyncCharge(_AsyncBlock):
    """What the block of `charge` gets. Set `used`, or leave the estimate as it is."""

    @property
    def decision(self) -> Decision:
        return self._all.decisions[0]


class AsyncHeld(AsyncCharge):
    """What the block of `hold` gets. A task renews the lease at each third of its ttl. When the lease is lost, the block is
    cancelled at its next `await`, and LeaseLost is raised. Nothing can stop a block of threads from outside: there, call
    `check` now and then."""


class AsyncGuard:
    """What `limit.admit` returns: a context manager, or a decorator."""

    def __init__(self, limit: AsyncLimit, key: Key, cost: int, wait: Duration | None) -> None:
        checked_key(key)
        self._limit, self._key, self._cost = limit, key, cost
        self._wait, self._waits = wait, checked_wait(wait) > 0

    async def _take(self, key: Key) -> Decision:
        if self._waits:
            decision = await self._limit.wait(key, self._wait or 0, self._cost)
        else:
            decision = await self._limit.take(key, self._cost)
        return decision.raise_if_denied()

    async def __aenter__(self) -> Decision:
        return await self._take(self._key)

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        key_of = key_format(self._key, function)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
            await self._take(key_of(args, kwargs))
            return await function(*args, **kwargs)  # type: ignore[misc,unused-ignore]

        if inspect.iscoroutinefunction(function) is not inspect.iscoroutinefunction(limited):
            raise TypeError(f"this limit can't guard {function!r}: use {io.OTHER}")
        return limited  # type: ignore[return-value,unused-ignore]
