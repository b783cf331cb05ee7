"""Blocks of work: what they are charged or hold when they begin, and what becomes of that when they end."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .. import _forks
from .._decision import AllDecision, Decision
from .._down import log
from .._errors import Closed, LeaseLost, RateLimitError, Unavailable
from .._keys import key_format
from .._policy import Duration, Id, Key, Lease, checked_cost, checked_id, checked_key, checked_wait, new_id
from .._replies import shown
from . import _io as io

if TYPE_CHECKING:
    from ._limits import AsyncLeaseLimit, AsyncLimit, AsyncLimits, Together

T = TypeVar("T")
P = ParamSpec("P")


class _AsyncBlock:
    """A block that is charged by an id. If anything but an error of this package ends its beginning, what the server may have
    granted is given back. A process that was forked within it leaves all of it to its parent."""

    def __init__(self, limits: AsyncLimits) -> None:
        self._of = limits
        self._keeper = io.Keeper()
        self._used: int | None = None
        self._process = -1

    @property
    def used(self) -> int | None:
        """What the work has used: a whole number from 0, or None as long as it is unknown."""
        return self._used

    @used.setter
    def used(self, units: int | None) -> None:
        self._used = None if units is None else checked_cost(units, 0)

    async def _enter(self) -> None:
        """Charges. Raises RateLimited if that is denied."""
        raise NotImplementedError

    async def _give_back(self) -> None:
        raise NotImplementedError

    async def _leave(self, failed: bool, again: bool) -> None:
        """Settles and releases. `again`: an exception of a signal's handler has interrupted this before."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises LeaseLost if a lease of this block has ended. Asks no server."""

    async def _begin(self) -> None:
        self._process = _forks.generation()
        try:
            await self._enter()
        except BaseException as error:
            await self._keeper.stop(None)
            # The task was cancelled, a signal has raised this, the limits were closed, or a lease has ended already. The
            # server may have granted the call.
            if isinstance(error, (Closed, LeaseLost)) or not isinstance(error, RateLimitError):
                await self._of._calls.jobs.finish(lambda again: self._give_back())
            raise

    async def _end(self, kind: type[BaseException] | None) -> None:
        if self._process != _forks.generation():
            return
        ours = False
        try:
            ours = await self._keeper.stop(kind)
        finally:
            await self._of._calls.jobs.finish(lambda again: self._leave(kind is not None, again))
        if ours:
            try:
                self.check()
            except LeaseLost as lost:
                raise lost from None


class AsyncCharge(_AsyncBlock):
    """What the block of `charge` gets. Set `used`, or leave the estimate as it is."""

    def __init__(self, limit: AsyncLimit, key: Key, estimate: int, wait_us: int, id: Id | None) -> None:
        super().__init__(limit._of)
        self._limit, self._key = limit, limit._full_key(key)
        self._estimate, self._wait_us = estimate, wait_us
        self._own = id is None
        self.id: Id = new_id() if id is None else checked_id(id)
        self.decision: Decision
        self._settled = False

    async def _enter(self) -> None:
        self.decision = await self._limit._charged(self._key, self._estimate, self.id, self._wait_us, self._own)
        self.decision.raise_if_denied()

    async def _give_back(self) -> None:
        await self._of._given_back([(self._limit.name, self._key)], self.id, self._own)

    async def _leave(self, failed: bool, again: bool) -> None:
        if self._settled and not again:
            return
        self._settled = True
        if self.decision.source != "down":
            charged = self.decision.granted
            used = self._used if self._used is not None else 0 if failed else charged
            await self._of._settled(self._limit, self._key, self.id, charged, used, again)

    async def settle(self, units: int) -> None:
        """Settles the charge now, not at the end of the block."""
        self.used = units
        await self._of._calls.jobs.finish(lambda again: self._leave(False, again))

    async def release(self) -> None:
        """Gives everything back now."""
        await self.settle(0)

    async def __aenter__(self) -> AsyncCharge:
        await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(kind)


class _AsyncLease:
    """A lease of a block."""

    def __init__(self, limit: AsyncLeaseLimit, key: bytes, id: Id) -> None:
        self.limit, self.key, self.id = limit, key, id
        assert isinstance(limit._policy, Lease)
        self.ttl = limit._policy.ttl
        # The lease lasts at least until then, by time.monotonic(), unless a renewal was denied.
        self.ends = float("-inf")
        self.lost = False

    def check(self) -> None:
        # For good: what a late reply says is too late.
        self.lost = self.lost or time.monotonic() >= self.ends
        if self.lost:
            raise LeaseLost(f"{self.limit.name}: the lease {shown(self.id)} is lost")

    async def begin(self, begin: float) -> None:
        """The lease was granted to a call that began at `begin`. When the server has granted it is unknown: so one that had
        to wait is renewed, and lasts a ttl from now."""
        self.ends = begin + self.ttl
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
        self.ends = begin + self.ttl


async def _renew(job: io.Job, lease_of: Callable[[], _AsyncLease | None]) -> None:
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


async def _keep(keeper: io.Keeper, jobs: io.Jobs, lease: _AsyncLease, begin: float) -> None:
    await lease.begin(begin)
    keeper.start(jobs, _renew, weakref.ref(lease))


class AsyncHeld(_AsyncBlock):
    """What the block of `hold` gets. A task renews the lease at each third of its ttl. When the lease is lost, the block is
    cancelled at its next `await`, and LeaseLost is raised. Nothing can stop a block of threads from outside: there, call
    `check` now and then."""

    def __init__(self, limit: AsyncLeaseLimit, key: Key, wait_us: int, units: int, id: Id | None) -> None:
        super().__init__(limit._of)
        self._own = id is None
        self.id: Id = new_id() if id is None else checked_id(id)
        self._lease = _AsyncLease(limit, limit._full_key(key), self.id)
        self._units, self._wait_us = units, wait_us
        self.decision: Decision

    def check(self) -> None:
        if self.decision.source != "down":
            self._lease.check()

    async def renew(self) -> None:
        """Renews the lease now. Raises LeaseLost if it is lost."""
        await self._lease.renew()

    async def _enter(self) -> None:
        lease, begin = self._lease, time.monotonic()
        decision = await lease.limit._charged(lease.key, self._units, self.id, self._wait_us, self._own)
        self.decision = decision.raise_if_denied()
        if decision.source != "down":
            await _keep(self._keeper, self._of._calls.jobs, lease, begin)

    async def _give_back(self) -> None:
        await self._of._given_back([(self._lease.limit.name, self._lease.key)], self.id, self._own)

    async def _leave(self, failed: bool, again: bool) -> None:
        if self.decision.source != "down":
            await self._of._released(self._lease.limit.name, self._lease.key, self.id)

    async def __aenter__(self) -> AsyncHeld:
        await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(kind)


class AsyncAdmission(_AsyncBlock):
    """What the block of `limits.admit` gets. Set `used`, or leave the estimate as it is. Tasks renew its leases, as those of
    `hold`."""

    def __init__(self, call: Together, wait_us: int) -> None:
        super().__init__(call.of)
        self._call, self._wait_us = call, wait_us
        assert call.id is not None
        self.id: Id = call.id
        self._leases = [
            _AsyncLease(limit, key, self.id)  # type: ignore[arg-type]
            for limit, key in zip(call.limits, call.keys)
            if isinstance(limit.policy, Lease)
        ]
        self.decision: AllDecision

    @property
    def decisions(self) -> list[Decision]:
        return list(self.decision.decisions)

    def check(self) -> None:
        if self.decision.source != "down":
            for lease in self._leases:
                lease.check()

    async def _enter(self) -> None:
        begin = time.monotonic()
        decision = await self._call.charged(self._wait_us, True)
        self.decision = decision.raise_if_denied()
        if decision.source != "down":
            for lease in self._leases:
                await _keep(self._keeper, self._of._calls.jobs, lease, begin)

    async def _give_back(self) -> None:
        await self._call.give_back()

    async def _leave(self, failed: bool, again: bool) -> None:
        if self.decision.source == "down":
            # What the server may have charged without a decision was given back when the block began.
            return
        call, limits = self._call, self._of
        # One deadline for all keys, so that a server that is down does not take the time of each.
        deadline = time.monotonic() + (limits._timeout if limits._calls.is_down else limits._calls.total)
        rows = list(zip(call.limits, call.keys, self.decision.decisions, call.estimated))
        for limit, key, decision, estimated in reversed(rows):
            if isinstance(limit.policy, Lease):
                await limits._released(limit.name, key, self.id, deadline)
                continue
            used = decision.granted
            if estimated and (failed or self._used is not None):
                used = self._used or 0
            await limits._settled(limit, key, self.id, decision.granted, used, again, deadline)  # type: ignore[arg-type]

    async def __aenter__(self) -> AsyncAdmission:
        await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(kind)


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

        if io.is_coroutine_function(function) is not io.is_coroutine_function(limited):
            raise TypeError(f"this limit can't guard {function!r}: use {io.OTHER}")
        return limited  # type: ignore[return-value,unused-ignore]
