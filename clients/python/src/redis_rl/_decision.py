"""Decisions, and how HTTP shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from ._errors import RateLimitError, UnexpectedReply
from ._policy import Id, Lease, Named, Policy

Source = Literal["server", "wallet", "repeated", "down"]
# draft-ietf-httpapi-ratelimit-headers-11
_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def _seconds(ms: int) -> int:
    """Whole seconds, rounded up."""
    return -(-ms // 1000)


class _Shown:
    """What HTTP shows of decisions."""

    if TYPE_CHECKING:

        @property
        def _listed(self) -> Sequence[Decision]: ...

    def headers(self) -> dict[str, str]:
        """The headers of an answer."""
        return headers(self._listed)

    def problem(self) -> dict[str, Any]:
        """The body of an answer to a denial, application/problem+json."""
        return problem(self._listed)


class RateLimited(_Shown, RateLimitError):
    """The call was denied. `retry_after` is in seconds; None means that a retry is never granted. If several limits decided
    together, `decision` is the denial with the longest wait, and `decisions` are those of all."""

    def __init__(self, decisions: Sequence[Decision], retry_after: float | None) -> None:
        self.decisions, self.decision, self.retry_after = decisions, _shown(decisions), retry_after
        names = ", ".join(each.name for each in decisions if not each.allowed)
        super().__init__(f"{names}: the limit is reached; retry {'never' if retry_after is None else f'in {retry_after:g} s'}")

    @property
    def _listed(self) -> Sequence[Decision]:
        return self.decisions


class _Decided(_Shown):
    """What the decision about one limit and that about several have in common."""

    if TYPE_CHECKING:
        wait_ms: int | None

        @property
        def allowed(self) -> bool: ...

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def wait(self) -> float | None:
        """Denied: the seconds until a retry; None means never. Granted: 0, or how long to wait before acting."""
        return None if self.wait_ms is None else self.wait_ms / 1000

    def raise_if_denied(self) -> Self:
        if not self.allowed:
            raise RateLimited(self._listed, self.wait)
        return self


@dataclass(frozen=True)
class Decision(_Decided):
    """The reply to one call. It is true if the call was not denied."""

    granted: int
    limit: int
    remaining: int
    # None: never.
    wait_ms: int | None
    reset_ms: int
    policy: Policy
    name: str
    # What decided: the server, a wallet, a denial of before that is repeated, or `on_down`.
    source: Source = "server"
    # How long the window is.
    _window_us: int = 0

    @property
    def allowed(self) -> bool:
        """Not denied. A refund that finds nothing to give back grants 0 units, and is not denied either."""
        return self.granted > 0 or self.wait_ms == 0

    @property
    def reset(self) -> float:
        """The seconds until no unit is in use."""
        return self.reset_ms / 1000

    @property
    def _listed(self) -> Sequence[Decision]:
        return [self]

    def changed(self, **fields: Any) -> Decision:
        """The same with other fields. `dataclasses.replace` does this, too, and takes several times as long: too long for
        decisions that are made in the process."""
        decision = object.__new__(Decision)
        decision.__dict__.update(self.__dict__, **fields)
        return decision


@dataclass(frozen=True)
class AllDecision(_Decided):
    """The reply to `Limits.all`. It is true if all limits have granted the call."""

    granted: bool
    wait_ms: int | None
    decisions: Sequence[Decision]
    # The name of the charge on each key, or None.
    id: Id | None = None

    @property
    def allowed(self) -> bool:
        return self.granted

    @property
    def source(self) -> Source:
        return self.decisions[0].source

    @property
    def _listed(self) -> Sequence[Decision]:
        return self.decisions


def all_of(decisions: Sequence[Decision], id: Id | None) -> AllDecision:
    """What these come to, if each limit has decided by itself."""
    waits = [decision.wait_ms for decision in decisions]
    never = any(wait is None for wait in waits)
    return AllDecision(all(decisions), None if never else max(wait or 0 for wait in waits), decisions, id)


def headers(decisions: Iterable[Decision]) -> dict[str, str]:
    """The header fields of an answer that these decisions have admitted or denied: those of the draft
    draft-ietf-httpapi-ratelimit-headers-11, and the older ones with X-. The latter describe one limit: the denial with the
    longest wait, or the limit with the least remaining."""
    counted = [decision for decision in decisions if decision.source != "down"]
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


def problem(decisions: Iterable[Decision]) -> dict[str, Any]:
    """The body of an answer that these decisions have denied, application/problem+json."""
    return {
        "type": _QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": [decision.name for decision in decisions if not decision.allowed],
    }


def _shown(decisions: Sequence[Decision]) -> Decision:
    denied = [decision for decision in decisions if not decision.allowed]
    if denied:
        return max(denied, key=lambda decision: float("inf") if decision.wait_ms is None else decision.wait_ms)
    return min(decisions, key=lambda decision: decision.remaining)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _policy_field(decision: Decision) -> str:
    policy = decision.policy
    named = isinstance(policy, Named)
    # A lease has no window: it counts what runs at the same time. That of a policy key is not known here.
    seconds = -(-(decision._window_us or policy.period_us) // 1_000_000)
    window = ';qu="concurrent-requests"' if isinstance(policy.default, Lease) else "" if named else f";w={seconds}"
    return f"{_quoted(decision.name)};q={decision.limit if named else policy.limit}{window}"


def _limit_field(decision: Decision) -> str:
    ms = decision.reset_ms if decision.allowed else decision.wait_ms
    end = "" if ms is None else f";t={_seconds(ms)}"
    return f"{_quoted(decision.name)};r={decision.remaining}{end}"


def decision_of(reply: object, policy: Policy, name: str, window_us: int = 0) -> Decision:
    if isinstance(reply, (list, tuple)) and len(reply) == 5 and all(type(each) is int for each in reply):
        granted, limit, remaining, wait_ms, reset_ms = reply
        wait = None if wait_ms < 0 else wait_ms
        return Decision(granted, limit, remaining, wait, reset_ms, policy, name, "server", window_us)
    raise UnexpectedReply(f"{name}: the reply is not five integers: {reply!r:.200}")


def unlimited(cost: int, policy: Policy, name: str) -> Decision:
    """The decision of a call that `on_down` lets through."""
    return Decision(cost, policy.capacity, 0, 0, 0, policy, name, "down")
