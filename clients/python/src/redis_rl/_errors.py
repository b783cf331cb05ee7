"""The errors, all but RateLimited. All of them derive from RateLimitError."""

from __future__ import annotations


class RateLimitError(Exception):
    """The base of all errors of this package."""


class InvalidArgument(RateLimitError, ValueError):
    """An argument is wrong. The five classes below are raised before a call is made; this one is what the server refuses."""


class InvalidLimit(InvalidArgument):
    """A policy, its rate, one of its durations, the name of a limit, or a setting of Limits."""


class InvalidKey(InvalidArgument):
    """A key that is not text, bytes or an integer, or is empty; or keys that can't be charged together."""


class InvalidCost(InvalidArgument):
    """A number of units that is not a whole number, or is out of range."""


class InvalidWait(InvalidArgument):
    """A wait that is not a duration from 0 to a day."""


class InvalidId(InvalidArgument):
    """An id that is neither text nor bytes, or is not 1 to 64 bytes long."""


class LeaseLost(RateLimitError):
    """The lease has ended, or could not be renewed until it did. Another holder may have its units."""


class Unavailable(RateLimitError):
    """The server gave no decision: there is no connection, the reply did not come in time, or the server can't decide now.

    `sent`: the server may have executed the call, although no reply came."""

    def __init__(self, message: str, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class NoModule(Unavailable):
    """The server does not know the command: it has no module redis-rl, or one that is too old."""


class NotAllowed(Unavailable):
    """The server refuses the client: its password is wrong or missing, or its user may not use the command or the key."""


class WrongType(RateLimitError):
    """The key holds something else: another data type, or a limiter of another algorithm."""


class UnexpectedReply(RateLimitError):
    """The server's reply does not have the shape that the command's reply has."""


class Closed(RateLimitError):
    """The program has closed the limits or the wallet."""
