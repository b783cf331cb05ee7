"""What a process decides by itself: denials that it remembers (`Limits.cached`), and units that it has fetched
(`Limits.wallet`). This file has what threads and asyncio share: it sends nothing."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import Any

from ._decision import Decision
from ._errors import Down, InvalidLimit, RateLimitError
from ._flow import Finish, Flow, LimitFlows, new_id
from ._policy import MAX_UNITS, checked_cost

CHANNEL = "__redis__:invalidate"
# A denial for a shorter time is not worth the call that watches the key.
SHORTEST_MS = 10
# If nothing comes on the connection with the invalidations, it is asked after this time, and is lost after as much again.
PING_S = 5.0
MOST_KEYS = 10_000


@dataclass
class _Denial:
    cost: int
    # By time.monotonic().
    until: float
    since: float
    # None: the key is not watched yet.
    decision: Decision | None


class Denials:
    """The denials that still hold, of at most `most` keys."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._of: collections.OrderedDict[bytes, _Denial] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def find(self, key: bytes, cost: int) -> Decision | None:
        """The decision, if the server would deny this call."""
        denial = self._of.get(key)
        if denial is None or denial.decision is None or cost < denial.cost:
            return None
        now = time.monotonic()
        with self._lock:
            if now >= denial.until:
                if self._of.get(key) is denial:
                    del self._of[key]
                return None
            if key in self._of:
                self._of.move_to_end(key)
        decision = denial.decision
        reset_ms = max(0, decision.reset_ms - int((now - denial.since) * 1000))
        never = decision.wait_ms is None or cost > decision.policy.capacity
        wait_ms = None if never else max(1, -int((now - denial.until) * 1000 // 1))
        return decision.changed(decision.granted, decision.remaining, wait_ms, reset_ms)

    def begin(self, key: bytes, cost: int) -> _Denial:
        """Announces that the key is about to be watched: an invalidation from now on drops the denial."""
        denial = _Denial(cost, 0.0, time.monotonic(), None)
        with self._lock:
            self._of[key] = denial
            self._of.move_to_end(key)
            while len(self._of) > self._most:
                self._of.popitem(last=False)
        return denial

    def end(self, key: bytes, denial: _Denial, decision: Decision | None) -> None:
        """Takes the decision that the server gave after `begin`. It counts from before the call, so it never holds too
        long."""
        with self._lock:
            if self._of.get(key) is not denial:
                return
            if decision is None or decision.allowed or (decision.wait_ms is not None and decision.wait_ms < SHORTEST_MS):
                del self._of[key]
                return
            denial.until = float("inf") if decision.wait_ms is None else denial.since + decision.wait_ms / 1000
            denial.decision = decision

    def drop(self, keys: list[bytes] | None) -> None:
        """Forgets these keys, or all."""
        with self._lock:
            if keys is None:
                self._of.clear()
            for key in keys or ():
                self._of.pop(key, None)

    def take_message(self, message: Any) -> None:
        """Takes a message of the connection with the invalidations."""
        if isinstance(message, list) and len(message) == 3 and message[0] in (b"message", "message"):
            self.drop(message[2])


def worth_watching(decision: Decision) -> bool:
    return decision.counted and not decision.allowed and (decision.wait_ms is None or decision.wait_ms >= SHORTEST_MS)


def peek_words(limit: LimitFlows, key: bytes, cost: int) -> tuple[Any, ...]:
    algorithm, *policy = limit.policy.rule()
    return ("RL.PEEK", algorithm, key, *policy, "COST", cost)


@dataclass
class _Batch:
    id: str
    granted: int
    left: int
    # When its units must not be spent any more, by time.monotonic().
    ends: float


@dataclass
class Purse:
    """The units of one key that this process has fetched and not spent."""

    batches: list[_Batch] = dataclasses.field(default_factory=list)
    # The last decision of the server, and when it was asked.
    decision: Decision | None = None
    asked: float = 0.0
    spent: float = 0.0
    # Whether the last fetch brought fewer units than it asked for.
    short: bool = False
    # Set while a fetch is under way, at whose end the waiting calls go on.
    fetching: Any = None
    # The units that the calls need that wait for it.
    wanted: int = 0

    def left(self, now: float) -> int:
        """The units that may be spent."""
        left = 0
        for batch in self.batches:
            if now < batch.ends:
                left += batch.left
        return left

    def spend(self, cost: int, now: float) -> bool:
        if self.left(now) < cost:
            return False
        self.spent = now
        for batch in self.batches:
            if now < batch.ends:
                part = min(cost, batch.left)
                batch.left -= part
                cost -= part
                if not cost:
                    break
        return True


class Wallet:
    """The purses of all keys. All methods but the flows are short, and hold the lock."""

    def __init__(self, limit: LimitFlows, batch: object, idle: object, most: int = MOST_KEYS) -> None:
        self.limit = limit
        self.batch = checked_cost(batch)
        if isinstance(idle, bool) or not isinstance(idle, (int, float)) or not 0 < idle <= 86_400:
            raise InvalidLimit(f"idle is a number of seconds above 0, not {idle!r}")
        self.idle = float(idle)
        self.most = most
        self.lock = threading.Lock()
        self.purses: collections.OrderedDict[bytes, Purse] = collections.OrderedDict()
        self.closed = False

    def purse(self, key: bytes) -> Purse:
        if self.closed:
            raise InvalidLimit("the wallet is closed")
        purse = self.purses.get(key)
        if purse is None:
            purse = self.purses[key] = Purse()
        else:
            self.purses.move_to_end(key)
        return purse

    def granted(self, purse: Purse, cost: int, now: float) -> Decision:
        decision = purse.decision
        assert decision is not None
        remaining = decision.remaining + purse.left(now)
        reset_ms = decision.reset_ms - int((now - purse.asked) * 1000)
        return decision.changed(
            cost, remaining if remaining < decision.limit else decision.limit, 0, reset_ms if reset_ms > 0 else 0
        )

    def denied(self, purse: Purse, decision: Decision, now: float) -> Decision:
        left = purse.left(now)
        wait_ms = max(1, decision.wait_ms) if decision.wait_ms is not None else None
        return dataclasses.replace(
            decision, granted=0, wait_ms=wait_ms, remaining=min(decision.limit, decision.remaining + left)
        )

    def fetch(self, key: bytes, purse: Purse, cost: int) -> Flow[Decision]:
        """Fetches units, enough for a call of `cost` if there are so many. Returns the server's decision."""
        now = time.monotonic()
        limit = self.limit
        with self.lock:
            # Enough for the calls that wait, too: else each of them might need a fetch of its own.
            units = min(max(self.batch, cost + purse.wanted - purse.left(now)), MAX_UNITS)
            purse.short = False
        id = new_id()
        words = limit.policy.command(key, "UPTO", str(units), "ID", id)
        try:
            reply, _ = yield from limit.core.call(words, key, repeat=True)
        except Down as down:
            if down.sent:
                yield Finish(limit.given_back(key, id, own=True, repeat=False))
            raise
        except (RateLimitError, GeneratorExit):
            raise
        except BaseException:
            yield Finish(limit.given_back(key, id, own=True, repeat=True))
            raise
        decision = limit.decision(reply)
        # The units count from the call on at the server, and are not spent longer than for a period.
        ends = now + min(decision.reset_ms / 1000, limit.policy.period_us / 1_000_000)
        with self.lock:
            purse.decision, purse.asked = decision, now
            purse.short = decision.granted < units
            # A fetch is a use, too: else what it brings might be given back at once.
            purse.spent = time.monotonic()
            if decision.granted:
                # A batch that was spent needs no settlement: the server forgets its id with the charge.
                purse.batches = [batch for batch in purse.batches if batch.left]
                purse.batches.append(_Batch(id, decision.granted, decision.granted, ends))
        return decision

    def denial(self, key: bytes, purse: Purse, cost: int) -> Flow[Decision]:
        """The decision of a call for which the units are not enough: its wait is that for the units that are missing."""
        now = time.monotonic()
        with self.lock:
            missing = max(1, cost - purse.left(now))
            decision = purse.decision
        assert decision is not None
        if missing > 1 or decision.granted:
            decision = yield from self.limit._decide(key, missing, words=peek_words(self.limit, key, missing))
        with self.lock:
            return self.denied(purse, decision, time.monotonic())

    def to_give_back(self, *, all: bool = False) -> list[tuple[bytes, _Batch]]:
        """Removes the batches that are past, or of keys that are idle, and returns those to settle. Nothing spends them
        any more."""
        now = time.monotonic()
        found = []
        with self.lock:
            excess = len(self.purses) - self.most
            for number, (key, purse) in enumerate(list(self.purses.items())):
                whole = all or (purse.fetching is None and (now >= purse.spent + self.idle or number < excess))
                past = [batch for batch in purse.batches if whole or now >= batch.ends or not batch.left]
                found += [(key, batch) for batch in past if batch.left]
                purse.batches = [batch for batch in purse.batches if not any(batch is each for each in past)]
                # A call that fetches units will put them there.
                if whole and purse.fetching is None:
                    del self.purses[key]
        return found

    def give_back(self, batches: list[tuple[bytes, _Batch]]) -> Flow[None]:
        for key, batch in batches:
            yield from self.limit.settled_quietly(key, batch.id, batch.granted, batch.granted - batch.left)

    def forget(self) -> None:
        """Drops all units without giving them back: they belong to the process that has forked this one."""
        self.lock = threading.Lock()
        self.purses = collections.OrderedDict()
