"""What a process that was forked must forget: connections, locks, threads and units are those of its parent."""

from __future__ import annotations

import os
import weakref
from typing import Any

_objects: weakref.WeakSet[Any] = weakref.WeakSet()
_forks = 0


def forgets(thing: Any) -> None:
    """In a process that is forked from now on, calls `thing._forget()` before anything else runs there."""
    _objects.add(thing)


def generation() -> int:
    """A number that is another one in a process that was forked."""
    return _forks


def _after_fork() -> None:
    global _forks
    _forks += 1
    for thing in list(_objects):
        thing._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
