# Made by make_sync.py. Do not change it here.
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
    from ._limits import LeaseLimit, Limit, Limits, Together

T = TypeVar("T")
P = ParamSpec("P")


class _Block:
    """A block that is charged by an id. If anything but an error of this package ends its beginning, what the server may have
    granted is given back. A process that was forked within it leaves all of it to its parent."""

    def __init__(self, limits: Limits) -> None:
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

    def _enter(self) -> None:
        """Charges. Raises RateLimited if that is denied."""
        raise NotImplementedError

    def _give_back(self) -> None:
        raise NotImplementedError

    def _leave(self, failed: bool, again: bool) -> None:
        """Settles and releases. `again`: an exception of a signal's handler has interrupted this before."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises LeaseLost if a lease of this block has ended. Asks no server."""

    def _begin(self) -> None:
        self._process = _forks.generation()
        try:
            self._enter()
        except BaseException as error:
            self._keeper.stop(None)
            # The task was cancelled, a signal has raised this, the limits were closed, or a lease has ended already. The
            # server may have granted the call.
            if isinstance(error, (Closed, LeaseLost)) or not isinstance(error, RateLimitError):
                self._of._calls.jobs.finish(lambda again: self._give_back())
            raise

    def _end(self, kind: type[BaseException] | None) -> None:
        if self._process != _forks.generation():
            return
        ours = False
        try:
            ours = self._keeper.stop(kind)
        finally:
            self._of._calls.jobs.finish(lambda again: self._leave(kind is not None, again))
        if ours:
            try:
                self.check()
            except LeaseLost as lost:
                raise lost from None


class Charge(_Block):
    """What the block of `charge` gets. Set `used`, or leave the estimate as it is."""

    def __init__(self, limit: Limit, key: Key, estimate: int, wait_us: int, id: Id | None) -> None:
        super().__init__(limit._of)
        self._limit, self._key = limit, limit._full_key(key)
        self._estimate, self._wait_us = estimate, wait_us
        self._own = id is None
        self.id: Id = new_id() if id is None else checked_id(id)
        self.decision: Decision
        self._settled = False

    def _enter(self) -> None:
        self.decision = self._limit._charged(self._key, self._estimate, self.id, self._wait_us, self._own)
        self.decision.raise_if_denied()

    def _give_back(self) -> None:
        self._of._given_back([(self._limit.name, self._key)], self.id, self._own)

    def _leave(self, failed: bool, again: bool) -> None:
        if self._settled and not again:
            return
        self._settled = True
        if self.decision.source != "down":
            charged = self.decision.granted
            used = self._used if self._used is not None else 0 if failed else charged
            self._of._settled(self._limit, self._key, self.id, charged, used, again)

    def settle(self, units: int) -> None:
        """Settles the charge now, not at the end of the block."""
        self.used = units
        self._of._calls.jobs.finish(lambda again: self._leave(False, again))

    def release(self) -> None:
        """Gives everything back now."""
        self.settle(0)

    def __enter__(self) -> Charge:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)


class _Lease:
    """A lease of a block."""

    def __init__(self, limit: LeaseLimit, key: bytes, id: Id) -> None:
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

    def begin(self, begin: float) -> None:
        """The lease was granted to a call that began at `begin`. When the server has granted it is unknown: so one that had
        to wait is renewed, and lasts a ttl from now."""
        self.ends = begin + self.ttl
        if time.monotonic() > begin + self.ttl / 3:
            self.ends = float("inf")
            try:
                self.renew()
            except Unavailable as error:
                log.warning("%s: the lease %s was not renewed: %s", self.limit.name, shown(self.id), error)
                self.ends = begin + self.ttl
                self.check()

    def renew(self) -> None:
        """Renews the lease, or raises LeaseLost."""
        begin = time.monotonic()
        deadline = begin + min(self.limit._of._calls.total, self.ttl / 4)
        renewed = self.limit._renewed(self.key, self.id, deadline)
        self.lost = self.lost or not renewed
        self.check()
        self.ends = begin + self.ttl


def _renew(job: io.Job, lease_of: Callable[[], _Lease | None]) -> None:
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
        if not job.pause(seconds):
            return
        lease = lease_of()
        try:
            if lease is not None and time.monotonic() < lease.ends:
                lease.renew()
        except LeaseLost:
            return
        except Exception as error:
            # Whatever it is, the next renewal may succeed. If none does, the lease is lost when it ends.
            log.warning("%s: a lease was not renewed: %s", name, error)


def _keep(keeper: io.Keeper, jobs: io.Jobs, lease: _Lease, begin: float) -> None:
    lease.begin(begin)
    keeper.start(jobs, _renew, weakref.ref(lease))


class Held(_Block):
    """What the block of `hold` gets. A thread renews the lease at each third of its ttl. Nothing can stop a block of threads from outside: there, call
    `check` now and then."""

    def __init__(self, limit: LeaseLimit, key: Key, wait_us: int, units: int, id: Id | None) -> None:
        super().__init__(limit._of)
        self._own = id is None
        self.id: Id = new_id() if id is None else checked_id(id)
        self._lease = _Lease(limit, limit._full_key(key), self.id)
        self._units, self._wait_us = units, wait_us
        self.decision: Decision

    def check(self) -> None:
        if self.decision.source != "down":
            self._lease.check()

    def renew(self) -> None:
        """Renews the lease now. Raises LeaseLost if it is lost."""
        self._lease.renew()

    def _enter(self) -> None:
        lease, begin = self._lease, time.monotonic()
        decision = lease.limit._charged(lease.key, self._units, self.id, self._wait_us, self._own)
        self.decision = decision.raise_if_denied()
        if decision.source != "down":
            _keep(self._keeper, self._of._calls.jobs, lease, begin)

    def _give_back(self) -> None:
        self._of._given_back([(self._lease.limit.name, self._lease.key)], self.id, self._own)

    def _leave(self, failed: bool, again: bool) -> None:
        if self.decision.source != "down":
            self._of._released(self._lease.limit.name, self._lease.key, self.id)

    def __enter__(self) -> Held:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)


class Admission(_Block):
    """What the block of `limits.admit` gets. Set `used`, or leave the estimate as it is. Threads renew its leases, as those of
    `hold`."""

    def __init__(self, call: Together, wait_us: int) -> None:
        super().__init__(call.of)
        self._call, self._wait_us = call, wait_us
        assert call.id is not None
        self.id: Id = call.id
        self._leases = [
            _Lease(limit, key, self.id)  # type: ignore[arg-type]
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

    def _enter(self) -> None:
        begin = time.monotonic()
        decision = self._call.charged(self._wait_us, True)
        self.decision = decision.raise_if_denied()
        if decision.source != "down":
            for lease in self._leases:
                _keep(self._keeper, self._of._calls.jobs, lease, begin)

    def _give_back(self) -> None:
        self._call.give_back()

    def _leave(self, failed: bool, again: bool) -> None:
        if self.decision.source == "down":
            # What the server may have charged without a decision was given back when the block began.
            return
        call, limits = self._call, self._of
        # One deadline for all keys, so that a server that is down does not take the time of each.
        deadline = time.monotonic() + (limits._timeout if limits._calls.is_down else limits._calls.total)
        rows = list(zip(call.limits, call.keys, self.decision.decisions, call.estimated))
        for limit, key, decision, estimated in reversed(rows):
            if isinstance(limit.policy, Lease):
                limits._released(limit.name, key, self.id, deadline)
                continue
            used = decision.granted
            if estimated and (failed or self._used is not None):
                used = self._used or 0
            limits._settled(limit, key, self.id, decision.granted, used, again, deadline)  # type: ignore[arg-type]

    def __enter__(self) -> Admission:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)


class Guard:
    """What `limit.admit` returns: a context manager, or a decorator."""

    def __init__(self, limit: Limit, key: Key, cost: int, wait: Duration | None) -> None:
        checked_key(key)
        self._limit, self._key, self._cost = limit, key, cost
        self._wait, self._waits = wait, checked_wait(wait) > 0

    def _take(self, key: Key) -> Decision:
        if self._waits:
            decision = self._limit.wait(key, self._wait or 0, self._cost)
        else:
            decision = self._limit.take(key, self._cost)
        return decision.raise_if_denied()

    def __enter__(self) -> Decision:
        return self._take(self._key)

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        key_of = key_format(self._key, function)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
            self._take(key_of(args, kwargs))
            return function(*args, **kwargs)  # type: ignore[misc,unused-ignore]

        if io.is_coroutine_function(function) is not io.is_coroutine_function(limited):
            raise TypeError(f"this limit can't guard {function!r}: use {io.OTHER}")
        return limited  # type: ignore[return-value,unused-ignore]
