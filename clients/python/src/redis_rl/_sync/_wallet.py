# Made by make_sync.py. Do not change it here.
"""Wallets: decisions in the process, from units that were fetched in batches.

A batch is charged by an id. While the process has it, nobody else can spend it; each of its units is spent once, and not
after it counts no more. When it is spent or past, or its key is idle, it is settled to what was spent, so that its id goes."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._decision import Decision
from .._down import MOST_KEYS, log
from .._errors import Closed, RateLimitError, Unavailable
from .._policy import MAX_UNITS, Id, Key, Named, Word, checked_cost, new_id
from . import _io as io

if TYPE_CHECKING:
    from ._limits import Limit

# How many batches are settled by one sending.
_AT_ONCE = 100


@dataclass(eq=False)
class _Batch:
    id: Id
    granted: int = 0
    left: int = 0
    # When its units must not be spent any more, by time.monotonic().
    ends: float = 0.0
    # It is about to be settled.
    ended: bool = False

    def usable(self, now: float) -> int:
        return 0 if self.ended or now >= self.ends else self.left

    def words(self, key: bytes) -> tuple[Word, ...]:
        return ("RL.SETTLE", key, self.id, self.granted - self.left)


@dataclass(eq=False)
class _Purse:
    """The units of one key."""

    # When a call was granted last.
    used: float
    batches: list[_Batch] = dataclasses.field(default_factory=list)
    # The last decision of the server, and when it was asked.
    decision: Decision | None = None
    asked: float = 0.0
    # Set while a call fetches units; others wait for it.
    turn: io.Turn | None = None
    # The units that the calls need that wait.
    wanted: dict[object, int] = dataclasses.field(default_factory=dict)
    # The cost for which the last fetch found too few units, or None.
    short: int | None = None
    # How many times a pause has begun: what was fetched before is not spent.
    pauses: int = 0

    def left(self, now: float) -> int:
        return sum(batch.usable(now) for batch in self.batches)

    def spend(self, cost: int, now: float) -> bool:
        if self.left(now) < cost:
            return False
        self.used = now
        for batch in self.batches:
            part = min(cost, batch.usable(now))
            batch.left -= part
            cost -= part
        return True


class Wallet:
    """Units that this process has fetched. Make one with `limits.wallet`."""

    def __init__(self, limit: Limit, batch: int, idle: float) -> None:
        self._limit, self._batch, self._idle = limit, batch, idle
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        """Begins anew: in a process that was forked, all units are those of its parent."""
        self._lock = threading.RLock()
        self._purses: collections.OrderedDict[bytes, _Purse] = collections.OrderedDict()
        self._tidies = io.PerLoop(lambda: [False])

    def take(self, key: Key, cost: int = 1) -> Decision:
        """Takes units from those that the process has fetched, and fetches more if they are not enough."""
        full, units = self._limit._full_key(key), checked_cost(cost)
        policy = self._limit.policy
        if units > policy.capacity and not self._closed and not isinstance(policy, Named):
            # Never granted, and nothing to fetch for.
            decision = self._limit.peek(key, cost)
            return decision.changed(source="wallet") if decision.source == "server" else decision
        waited = False
        while True:
            purse: _Purse | None = None
            mine = io.Turn()
            try:
                with self._lock:
                    if self._closed:
                        raise Closed("the wallet is closed")
                    now = time.monotonic()
                    purse = self._purses.get(full)
                    if purse is None:
                        purse = self._purses[full] = _Purse(now)
                    self._purses.move_to_end(full)
                    if purse.spend(units, now):
                        return self._granted(purse, units, now)
                    other = None if purse.turn is None or purse.turn.is_dead else purse.turn
                    failed = waited and purse.short is not None and units >= purse.short
                    if other is None and not failed:
                        purse.turn = mine
                if other is not None:
                    self._wait(purse, other, units)
                    waited = True
                    continue
                if not failed and self._fetch(full, purse, units):
                    continue
                self._end(full, purse)
                if self._closed:
                    raise Closed("the wallet was closed")
                return self._denial(full, purse, units)
            except Unavailable as error:
                return self._limit._decide_down(error, full, units)
            finally:
                # No call comes before this in C, so that no signal's handler does either.
                if purse is not None and purse.turn is mine:
                    purse.turn = None
                mine.end()

    def _wait(self, purse: _Purse, turn: io.Turn, units: int) -> None:
        """Waits until the call has ended that fetches units now, for as long as that may take."""
        end, token = time.monotonic() + 2 * self._limit._of._calls.total, object()
        try:
            purse.wanted[token] = units
            while purse.turn is turn and not turn.is_dead and (left := end - time.monotonic()) > 0:
                turn.wait(left)
        finally:
            purse.wanted.pop(token, None)
        if purse.turn is turn:
            raise Unavailable(f"{self._limit.name}: the call that fetches units takes too long")

    def _fetch(self, key: bytes, purse: _Purse, cost: int) -> bool:
        """Fetches units, enough for a call of `cost` if there are so many."""
        limit, batch, now, clock = self._limit, _Batch(new_id()), time.monotonic(), time.time()
        calls = limit._of._calls
        self._tidy_later()
        with self._lock:
            # Enough for the calls that wait, too: else each of them might need a fetch of its own.
            units = min(max(self._batch, cost + sum(list(purse.wanted.values())) - purse.left(now)), MAX_UNITS)
            spent = [each for each in purse.batches if not each.usable(now)]
            pauses = purse.pauses
        words = limit._command(key, "UPTO", units, "ID", batch.id, now=clock)
        before = [each.words(key) for each in spent]
        given_back = [(limit, key)], batch.id, True
        try:
            reply, _ = calls.call(words, key, repeat=True, before=before)
            decision = limit._decision(reply, clock)
            with self._lock:
                purse.decision, purse.asked = decision, now
                purse.batches = [each for each in purse.batches if each not in spent]
                batch.granted = batch.left = decision.granted
                # The units count from the call on at the server, and are not spent for longer than a period. With SHADOW, they
                # may not count at all.
                period_us = limit.policy.period_us
                batch.ends = now + min(decision.reset_ms * 1000 or period_us, period_us) / 1_000_000
                batch.ended = self._closed or purse.pauses != pauses
                if decision.granted:
                    purse.batches.append(batch)
                if enough := not batch.ended and purse.left(now) >= cost:
                    purse.used = time.monotonic()
                purse.short = None if enough else cost
            return enough
        except Unavailable as error:
            if error.sent:
                calls.beside(lambda job: limit._of._given_back(*given_back))
            raise
        except BaseException as error:
            if batch not in purse.batches:
                limit._of._abandoned(calls, error, *given_back)
            raise

    def _granted(self, purse: _Purse, cost: int, now: float) -> Decision:
        decision = purse.decision
        assert decision is not None
        return decision.changed(
            granted=cost,
            remaining=min(decision.limit, decision.remaining + purse.left(now)),
            wait_ms=0,
            reset_ms=max(0, decision.reset_ms - int((now - purse.asked) * 1000)),
            source="wallet",
        )

    def _denial(self, key: bytes, purse: _Purse, cost: int) -> Decision:
        """The decision of a call for which the units are not enough. A Named has no peek: there, the call takes its units from
        the server if they have come back just now."""
        limit, decision = self._limit, purse.decision
        named = isinstance(limit.policy, Named)
        if decision is None or cost > 1 or decision.granted:
            decision = limit._decide(key, cost, "COST", cost, how="" if named else "PEEK")
        if decision.source == "down" or named and decision:
            return decision
        # Units may have come back just now.
        wait_ms = decision.wait_ms if decision.wait_ms is None else max(1, decision.wait_ms)
        return decision.changed(granted=0, wait_ms=wait_ms, source="wallet")

    def _tidy_later(self) -> None:
        """Begins the work that gives idle units back, unless it is under way."""
        running = self._tidies.get()
        with self._lock:
            begun, running[0] = running[0], True
        try:
            begun = begun or self._limit._of._calls.beside(lambda job: self._tidy(job, running))
        finally:
            if not begun:
                running[0] = False

    def _tidy(self, job: io.Job, running: list[bool]) -> None:
        try:
            while job.pause(self._idle / 2):
                self._give_back()
                with self._lock:
                    if not self._purses:
                        running[0] = False
                        return
        finally:
            running[0] = False

    def _give_back(self, job: io.Job | None = None) -> None:
        """Gives back the batches that are past, have ended, or are of keys that are idle; all, if the wallet is closed."""
        now, found = time.monotonic(), []
        with self._lock:
            excess = len(self._purses) - MOST_KEYS
            for number, (key, purse) in enumerate(list(self._purses.items())):
                whole = self._closed or (purse.turn is None and (now >= purse.used + self._idle or number < excess))
                for batch in purse.batches:
                    batch.ended = batch.ended or whole or not batch.usable(now)
                found += [(key, purse, batch) for batch in purse.batches if batch.ended]
                # A call that fetches units will put them there.
                if whole and purse.turn is None and not purse.batches:
                    del self._purses[key]
        self._settle(found)

    def _end(self, key: bytes, purse: _Purse) -> None:
        """Gives back what a purse has, because it was not enough for a call: others may need it."""
        with self._lock:
            found = [(key, purse, batch) for batch in purse.batches]
            for batch in purse.batches:
                batch.ended = True
        if found:
            self._limit._of._calls.jobs.finish(lambda again: self._settle(found))

    def _settle(self, found: list[tuple[bytes, _Purse, _Batch]]) -> None:
        """Settles batches that have ended to what was spent of them. What the server does not answer is settled again, until
        the units do not count any more."""
        calls = self._limit._of._calls
        step = 1 if calls.topology else _AT_ONCE
        for start in range(0, len(found), step):
            some = found[start : start + step]
            commands = [batch.words(key) for key, _, batch in some]
            failed = False
            try:
                calls.call(commands[-1], found[start][0], repeat=True, must=True, before=commands[:-1])
            except RateLimitError as error:
                failed = True
                log.warning("%s: the units of %d batches were not given back: %s", self._limit.name, len(commands), error)
            with self._lock:
                for key, purse, batch in some:
                    if batch in purse.batches and not (failed and time.monotonic() < batch.ends):
                        purse.batches.remove(batch)
                    if not purse.batches and purse.turn is None and self._purses.get(key) is purse:
                        del self._purses[key]

    def _stop(self, key: bytes) -> bool:
        """Lets no call spend what was fetched of a key up to now. Returns whether there is something to give back."""
        with self._lock:
            purse = self._purses.get(key)
            if purse is None:
                return False
            purse.pauses += 1
            for batch in purse.batches:
                batch.ended = True
            return bool(purse.batches)

    def close(self) -> None:
        """Gives all units back. The wallet can't be used any more."""
        with self._lock:
            self._closed = True
        self._limit._of._calls.jobs.finish(lambda again: self._give_back())

    def __enter__(self) -> Wallet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
