"""Decisions, and the headers of HTTP that show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ._errors import RateLimited, UnexpectedReply
from ._policy import Lease, Policy


def _seconds(ms: int) -> int:
    """Whole seconds, rounded up."""
    return -(-ms // 1000)


@dataclass(frozen=True)
class Decision:
    """The reply to one call. It is true if the call was not denied."""

    granted: int
    limit: int
    remaining: int
    # None: never.
    wait_ms: int | None
    reset_ms: int
    policy: Policy
    name: str
    # False: the server gave no decision, and `on_down="open"` let the call pass.
    counted: bool = True

    @property
    def allowed(self) -> bool:
        """Not denied. A refund that finds nothing to give back grants 0 units, and is not denied either."""
        return self.granted > 0 or self.wait_ms == 0

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def wait(self) -> float | None:
        """Denied: the seconds until a retry; None means never. Granted: 0, or how long to wait before acting."""
        return None if self.wait_ms is None else self.wait_ms / 1000

    @property
    def reset(self) -> float:
        """The seconds until no unit is in use."""
        return self.reset_ms / 1000

    @property
    def title(self) -> str:
        return self.name

    @property
    def worst(self) -> Decision:
        return self

    @property
    def listed(self) -> Sequence[Decision]:
        return [self]

    def raise_if_denied(self) -> Decision:
        if not self.allowed:
            raise RateLimited(self)
        return self

    def headers(self) -> dict[str, str]:
        return headers([self])

    def changed(self, granted: int, remaining: int, wait_ms: int | None, reset_ms: int) -> Decision:
        """The same with other numbers. `dataclasses.replace` does this, too, and takes several times as long: too long for
        decisions that are made in the process."""
        decision = object.__new__(Decision)
        fields = decision.__dict__
        fields.update(self.__dict__)
        fields["granted"], fields["remaining"], fields["wait_ms"], fields["reset_ms"] = granted, remaining, wait_ms, reset_ms
        return decision


@dataclass(frozen=True)
class AllDecision:
    """The reply to `Limits.all`. It is true if all limits have granted the call."""

    granted: bool
    wait_ms: int | None
    decisions: Sequence[Decision]
    # The name of the charge on each key, or None.
    id: str | bytes | None = None

    @property
    def allowed(self) -> bool:
        return self.granted

    @property
    def counted(self) -> bool:
        return all(decision.counted for decision in self.decisions)

    def __bool__(self) -> bool:
        return self.granted

    @property
    def wait(self) -> float | None:
        return None if self.wait_ms is None else self.wait_ms / 1000

    @property
    def title(self) -> str:
        return ", ".join(decision.name for decision in self.decisions if not decision.allowed)

    @property
    def worst(self) -> Decision:
        """The denial with the longest wait; if nothing was denied, the limit with the least remaining."""
        return _shown(self.decisions)

    @property
    def listed(self) -> Sequence[Decision]:
        return self.decisions

    def raise_if_denied(self) -> AllDecision:
        if not self.granted:
            raise RateLimited(self)
        return self

    def headers(self) -> dict[str, str]:
        return headers(self.decisions)


def headers(decisions: Iterable[Decision]) -> dict[str, str]:
    """The headers of an answer that these decisions have admitted or denied: the fields of the draft
    draft-ietf-httpapi-ratelimit-headers-11, and the older ones with X-. The latter describe one limit: the denial with the
    longest wait, or the limit with the least remaining."""
    counted = [decision for decision in decisions if decision.counted]
    if not counted:
        return {}
    shown = _shown(counted)
    fields = {
        "RateLimit-Policy": ", ".join(map(_policy_field, counted)),
        "RateLimit": ", ".join(map(_limit_field, counted)),
        "X-RateLimit-Limit": str(shown.limit),
        "X-RateLimit-Remaining": str(shown.remaining),
        "X-RateLimit-Reset": str(_seconds(shown.reset_ms)),
    }
    if not shown.allowed and shown.wait_ms is not None:
        fields["Retry-After"] = str(_seconds(shown.wait_ms))
    return fields


def _shown(decisions: Sequence[Decision]) -> Decision:
    denied = [decision for decision in decisions if not decision.allowed]
    if denied:
        return max(denied, key=lambda decision: float("inf") if decision.wait_ms is None else decision.wait_ms)
    return min(decisions, key=lambda decision: decision.remaining)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _policy_field(decision: Decision) -> str:
    policy = decision.policy
    # A lease has no window: it counts what runs at the same time.
    window = ';qu="concurrent-requests"' if isinstance(policy, Lease) else f";w={_seconds(-(-policy.period_us // 1000))}"
    return f"{_quoted(decision.name)};q={policy.limit}{window}"


def _limit_field(decision: Decision) -> str:
    ms = decision.reset_ms if decision.allowed else decision.wait_ms
    end = "" if ms is None else f";t={_seconds(ms)}"
    return f"{_quoted(decision.name)};r={decision.remaining}{end}"


def decision_of(reply: object, policy: Policy, name: str) -> Decision:
    if isinstance(reply, (list, tuple)) and len(reply) == 5 and all(type(each) is int for each in reply):
        granted, limit, remaining, wait_ms, reset_ms = reply
        return Decision(granted, limit, remaining, None if wait_ms < 0 else wait_ms, reset_ms, policy, name)
    raise UnexpectedReply(f"{name}: the reply is not five integers: {reply!r:.200}")


def uncounted(cost: int, policy: Policy, name: str) -> Decision:
    """The decision of a call that `on_down="open"` lets pass."""
    return Decision(cost, policy.capacity, 0, 0, 0, policy, name, counted=False)
