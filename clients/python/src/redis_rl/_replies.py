"""What the server's errors mean, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence

from redis import exceptions

from ._errors import InvalidArgument, InvalidKey, NoModule, NotAllowed, RateLimitError, Unavailable, WrongType
from ._policy import Word


class Lost(Exception):
    """There is no reply. `sent`: the server may have executed the command."""

    def __init__(self, cause: BaseException, sent: bool) -> None:
        self.cause, self.sent = cause, sent


_CODES = frozenset(
    "ASK BUSY CLUSTERDOWN CROSSSLOT EXECABORT LOADING MASTERDOWN MISCONF MOVED NOAUTH NOPERM NOPOLICY NOREPLICAS OOM "
    "READONLY TRYAGAIN UNBLOCKED WRONGPASS WRONGTYPE".split()
)
# The server has not executed the call, and may do so a moment later, or another server may.
AGAIN = frozenset("CLUSTERDOWN LOADING MASTERDOWN READONLY TRYAGAIN UNBLOCKED".split())
# The settings of the client are wrong.
RIGHTS = frozenset("NOAUTH NOPERM WRONGPASS".split())
_CLASSES: dict[type[Exception], str] = {
    # Before its base, which is AskError.
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AuthenticationError: "NOAUTH",
    exceptions.OutOfMemoryError: "OOM",
}
_ADVICE = {
    "BUSY": "a script runs on the server: end it with SCRIPT KILL",
    "CLUSTERDOWN": "the cluster does not serve all slots: see CLUSTER INFO",
    "LOADING": "the server loads its data: wait until it has",
    "MASTERDOWN": "the replica has lost its primary: connect to a primary",
    "MISCONF": "the server can't save its data: see its log and its disk",
    "NOAUTH": "give the client the user and the password that the server wants",
    "NOPERM": "let the user run the commands of redis-rl on these keys, by ACL SETUSER",
    "NOREPLICAS": "too few replicas are connected: see min-replicas-to-write",
    "OOM": "the server has no memory left: raise maxmemory, or remove keys",
    "READONLY": "the server is a replica: connect to the primary",
    "WRONGPASS": "give the client the user and the password that the server wants",
}


def code_of(error: BaseException) -> str:
    """The first word of an error reply. redis-py removes it from the message of some errors."""
    first = str(error).split(" ", 1)[0]
    if first in _CODES:
        return first
    return next((code for base, code in _CLASSES.items() if isinstance(error, base)), "ERR")


def keeps_connection(error: BaseException) -> bool:
    """Whether the connection on which this error came may be used again: not if it leads to the wrong server."""
    return code_of(error) in ("ERR", "WRONGTYPE", "OOM", "NOPERM", "NOPOLICY", "CROSSSLOT", "MOVED", "ASK")


def is_reply(error: BaseException) -> bool:
    """Whether the server has sent this error. redis-py's classes for LOADING, NOAUTH and WRONGPASS are ConnectionErrors."""
    others = (exceptions.BusyLoadingError, exceptions.AuthenticationError)
    return isinstance(error, exceptions.ResponseError) or isinstance(error, others)


def unavailable(error: BaseException, sent: bool = False) -> Unavailable:
    """The error of a call without a decision."""
    if not is_reply(error):
        return Unavailable(f"no decision: {str(error) or repr(error)}; does the server run, and is its address right?", sent)
    code = code_of(error)
    advice = f"; {_ADVICE[code]}" if code in _ADVICE else ""
    return (NotAllowed if code in RIGHTS else Unavailable)(f"no decision: {error}{advice}", sent)


def translated(error: Exception, words: Sequence[Word], key: bytes) -> RateLimitError:
    """The error that an error reply means."""
    code, message = code_of(error), str(error)
    if code == "WRONGTYPE":
        keys = words[2 : 2 + int(words[1])] if words[0] == "RL.ALL" else [key]
        names = " or ".join(repr(shown(each)) for each in keys)
        return WrongType(f"{names}: {message.removeprefix('WRONGTYPE ')}")
    if code == "CROSSSLOT":
        advice = "; in a cluster, the policy keys need the hash tag of the call's key" if words[0] == "RL.USE" else ""
        return InvalidKey(message + advice)
    # Others wait in all places that the server has: it has decided nothing.
    if code != "ERR" or "too many waiting calls" in message:
        return unavailable(error)
    if message.lower().removeprefix("err ").startswith("unknown command"):
        advice = "load it: `loadmodule /path/to/libredis_rl.so` in its configuration"
        return NoModule(f"the server has no module redis-rl, or one that is too old: {advice} ({message})")
    return InvalidArgument(message)


def shown(word: Word | None) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
