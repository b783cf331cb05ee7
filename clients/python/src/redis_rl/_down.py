"""What decides without the server: when a server counts as down, what `on_down` does then, and denials that are repeated."""

from __future__ import annotations

import collections
import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Literal

from ._decision import Decision, unlimited
from ._errors import InvalidLimit, Unavailable
from ._policy import Gcra, Lease, Policy

log = logging.getLogger("redis_rl")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
MOST_KEYS = 10_000
OnDown = Literal["open", "closed"] | Gcra
# What a call does, if it is not to take all units of its cost or none.
How = Literal["", "UPTO", "FORCE", "REFUND", "PEEK"]


class Breaker:
    """Whether one server counts as down. While it does, one call at a time asks it, and the others need not wait for it.

    All locks of this package are RLocks, and are taken by `with`: both are done in C, so that an exception of a signal's
    handler can't come between, and a handler that makes calls itself does not wait for its own thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Why the server counts as down.
        self.cause: BaseException | None = None
        self._pause = 0.0
        self._next = 0.0

    def refuses(self, longest: float) -> BaseException | None:
        """Why a call may not ask the server. None: it may. If the server is down, that is a probe, which takes `longest`
        seconds at most."""
        if self.cause is None:
            return None
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return self.cause
            self._next = now + longest
            return None

    def failed(self, cause: BaseException, probe: bool) -> None:
        """The server was found down: by a probe, or by a call that began before it was."""
        with self._lock:
            if self.cause and not probe:
                return
            self._pause = min(self._pause * 2, LONGEST_PAUSE_S) if self.cause else FIRST_PAUSE_S
            self._next = time.monotonic() + self._pause * random.uniform(0.75, 1)
            self.cause = cause

    def ended(self) -> None:
        """A probe has ended without a result, because its program has ended it."""
        self._next = 0.0

    def succeeded(self) -> None:
        self.cause = None


class LocalLimiter:
    """A GCRA for each key, in this process. Times are microseconds times the limit, so that all numbers are integers."""

    def __init__(self, policy: Gcra) -> None:
        self._policy = policy
        self._lock = threading.RLock()
        # For each key, when it will be as if it had never been used; the one that was not used for longest is the first.
        self._ends: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def decide(self, rules: Sequence[tuple[str, Policy, bytes, int]], how: How = "") -> list[Decision]:
        """The decisions of these rules: a name, a policy, a key and a cost. All of them take their units, or none."""
        with self._lock:
            for _, _, key, _ in rules:
                if key in self._ends:
                    self._ends.move_to_end(key)
            now = time.monotonic_ns() // 1000 * self._policy.limit
            decisions = [self._decision(now, *rule, how) for rule in rules]
            if how != "PEEK" and all(decisions):
                for (_, _, key, _), decision in zip(rules, decisions):
                    self._ends[key] = max(now, self._ends.get(key, 0)) + decision.granted * self._policy.period_us
                while len(self._ends) > MOST_KEYS:
                    self._ends.popitem(last=False)
            return decisions

    def _decision(self, now: int, name: str, policy: Policy, key: bytes, cost: int, how: How) -> Decision:
        if isinstance(policy.default, Lease):
            return unlimited(cost, policy, name)
        limit, unit, capacity = self._policy.limit, self._policy.period_us, self._policy.capacity
        if limit == 0:
            return Decision(0, 0, 0, None, 0, policy, name, "down")
        used = max(0, self._ends.get(key, 0) - now)
        free = max(0, capacity * unit - used) // unit
        wanted = min(cost, max(1, free)) if how == "UPTO" else cost
        granted = wanted if wanted <= free else 0
        wait_ms: int | None = 0
        if not granted:
            wait_ms = -(-(used + (wanted - capacity) * unit) // (limit * 1000)) if wanted <= capacity else None
        taken = 0 if how == "PEEK" else granted
        after = used + taken * unit
        return Decision(granted, capacity, free - taken, wait_ms, -(-after // (limit * 1000)), policy, name, "down")


class Down:
    """What `on_down` does with calls for which there is no decision."""

    def __init__(self, on_down: OnDown) -> None:
        if on_down not in ("open", "closed") and not isinstance(on_down, Gcra):
            raise InvalidLimit(f"on_down is 'open', 'closed' or a Gcra, not {on_down!r}")
        self.closed = on_down == "closed"
        self._local = LocalLimiter(on_down) if isinstance(on_down, Gcra) else None
        self.let_through = 0
        self._lock = threading.RLock()
        self._logged = float("-inf")
        self._calls = 0

    def decide(
        self, error: Unavailable, rules: Sequence[tuple[str, Policy, bytes, int]], how: How = ""
    ) -> list[Decision]:
        """Raises the error, or decides. What a limiter in the process can't do, it lets through as "open" does."""
        self.goes_on(error, ", ".join(name for name, _, _, _ in rules))
        if self._local and how not in ("FORCE", "REFUND"):
            decisions = self._local.decide(rules, how)
        else:
            decisions = [unlimited(cost, policy, name) for name, policy, _, cost in rules]
        if all(decisions):
            with self._lock:
                self.let_through += 1
        return decisions

    def goes_on(self, error: Unavailable, what: str) -> None:
        """Logs the error, and raises it if calls do not go on without the server."""
        calls = 0
        with self._lock:
            now = time.monotonic()
            self._calls += 1
            if now >= self._logged + 1:
                calls, self._calls, self._logged = self._calls, 0, now
        if calls:
            log.error("%s: %d calls without the server: %s", what, calls, error)
        if self.closed:
            raise error


class Denials:
    """The denials of one limit that are repeated without a call, for at most so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.RLock()
        # For each key: until when, since when, the cost, and the decision.
        self._of: dict[bytes, tuple[float, float, int, Decision]] = {}
        # How many times something was forgotten.
        self.changes = 0

    def find(self, key: bytes, cost: int) -> Decision | None:
        """The decision, if a call of the same cost was denied just now. A higher cost would be denied, too, but for longer."""
        until, since, denied, decision = self._of.get(key, (0.0, 0.0, 0, None))
        now = time.monotonic()
        if decision is None or cost != denied or now >= until:
            return None
        passed = int((now - since) * 1000)
        wait_ms = None if decision.wait_ms is None else max(1, decision.wait_ms - passed)
        return decision.changed(wait_ms=wait_ms, reset_ms=max(0, decision.reset_ms - passed), source="repeated")

    def add(self, key: bytes, cost: int, decision: Decision, since: float, changes: int) -> None:
        """Remembers a decision, if nothing was forgotten since its call began."""
        if not self._seconds or decision or decision.source != "server":
            return
        seconds = self._seconds if decision.wait is None else min(self._seconds, decision.wait)
        with self._lock:
            if self.changes == changes:
                self._of.pop(key, None)
                self._of[key] = (since + seconds, since, cost, decision)
                while len(self._of) > MOST_KEYS:
                    del self._of[next(iter(self._of))]

    def forget(self, key: bytes) -> None:
        with self._lock:
            self.changes += 1
            self._of.pop(key, None)
