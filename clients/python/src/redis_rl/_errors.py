"""The errors. All of them derive from RateLimitError."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._decision import AllDecision, Decision


class RateLimitError(Exception):
    """The base of all errors of this package."""


class InvalidArgument(RateLimitError, ValueError):
    """The base of the errors that are the caller's fault, and are raised before a call is made."""


class InvalidLimit(InvalidArgument):
    """A policy, its rate, one of its durations, or the name of a limit."""


class InvalidKey(InvalidArgument):
    """A key that is neither text nor bytes, or is empty; or keys that can't be charged together."""


class InvalidCost(InvalidArgument):
    """A number of units that is not a whole number, or is out of range."""


class InvalidWait(InvalidArgument):
    """A wait that is not a duration from 0 to a day."""


class InvalidId(InvalidArgument):
    """An id that is neither text nor bytes, or is not 1 to 64 bytes long."""


class RateLimited(RateLimitError):
    """The call was denied. `retry_after` is in seconds; None means that a retry is never granted. If several limits decided
    together, `decision` is the denial with the longest wait, and `decisions` are those of all."""

    def __init__(self, decision: Decision | AllDecision) -> None:
        self.decision = decision.worst
        self.decisions = decision.listed
        self.retry_after = decision.wait
        self._all = decision
        when = "never" if self.retry_after is None else f"in {self.retry_after:g} s"
        super().__init__(f"{decision.title}: the limit is reached; retry {when}")

    def headers(self) -> dict[str, str]:
        """The headers of an answer, from the decisions of all limits."""
        return self._all.headers()


class LeaseLost(RateLimitError):
    """The lease has ended, or could not be renewed until it did. Another holder may have its units."""


class Down(RateLimitError):
    """The server gave no decision: there is no connection, the reply did not come in time, or the server can't decide now.

    `sent`: the server may have executed the call, although no reply came."""

    def __init__(self, message: str, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class NoModule(RateLimitError):
    """The server does not know the command: it has no module redis-rl, or one that is too old."""


class WrongType(RateLimitError):
    """The key holds something else: another data type, or a limiter of another algorithm."""


class Refused(RateLimitError):
    """The server refused the arguments of the call, or the client: its password is wrong or missing, or its user may not
    use the command or the key."""


class UnexpectedReply(RateLimitError):
    """The server's reply does not have the shape that the command's reply has."""
