"""What the adapters of web frameworks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._decision import Decision
from ._down import log
from ._errors import RateLimitError

PROBLEM = "application/problem+json"


class Rule:
    """What an adapter asks about a request."""

    def __init__(
        self,
        kinds: tuple[type, type],
        limit: Any,
        key: Callable[[Any], Any],
        cost: Any,
        skip: Callable[[Any], Any] | None,
        denied: Callable[[Any, Decision], Any] | None,
    ) -> None:
        """
        limit   a limit or a wallet, or a function of the request that returns one
        key     a function of the request; a request whose key is None is not limited
        cost    a number of units, or a function of the request
        skip    a function of the request: whether it is not limited
        denied  a function of the request and the decision, which makes the answer to a denial"""
        self.key, self._cost, self.skip, self.denied = key, cost, skip, denied
        self._kinds, self._limit = kinds, limit
        if isinstance(limit, type) or not callable(limit):
            self.checked(limit)

    def checked(self, limit: Any) -> Any:
        """A limit that the function has returned."""
        if not isinstance(limit, self._kinds):
            names = " or a ".join(kind.__name__ for kind in self._kinds)
            raise TypeError(f"the limit is a {names}, or a function that returns one, not {limit!r}")
        # When a later call of the function fails, its `on_down` decides.
        self._last = limit
        return limit

    def cost_of(self, request: Any) -> Any:
        return self._cost(request) if callable(self._cost) else self._cost

    def limit(self, request: Any) -> Any:
        return self._limit if isinstance(self._limit, self._kinds) else self._limit(request)

    def lets_through(self, error: Exception) -> bool:
        """Whether a request goes on in spite of an error of the program or of the server: unless `on_down` is "closed"."""
        limit = getattr(self, "_last", None)
        limit = getattr(limit, "_limit", limit)
        if limit is None or limit._of._down.closed:
            return False
        log.error("a request goes on without its limit: %r", error, exc_info=not isinstance(error, RateLimitError))
        return True
