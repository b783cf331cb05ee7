"""A limit for requests of Flask.

    limited = FlaskLimits(app)

    @app.get("/export")
    @limited(exports, key=lambda: request.headers.get("x-user") or request.remote_addr)
    def export(): ...

A denied request gets the status 429, and one that can't be decided 503. Every answer has the headers of its decisions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import flask

from ._decision import headers
from ._errors import Down
from ._policy import Key
from ._sync import Limit

T = TypeVar("T")
P = ParamSpec("P")


def client_address() -> str:
    """The address of the client, as the server sees it. Behind a proxy it is that of the proxy."""
    return flask.request.remote_addr or "unknown"


class FlaskLimits:
    def __init__(self, app: flask.Flask) -> None:
        app.after_request(self._add_headers)

    def __call__(
        self, limit: Limit, key: Callable[[], Key | None] = client_address, cost: int = 1
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """A decorator of a view. If `key()` is None, the request is not limited."""
        if not isinstance(limit, Limit):
            raise TypeError("the limit is one of redis.Redis: Limits(redis.Redis()).limit(...)")

        def decorate(view: Callable[P, T]) -> Callable[P, T]:
            @functools.wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> T:
                self.take(limit, key(), cost)
                return view(*args, **kwargs)

            return limited

        return decorate

    def take(self, limit: Limit, key: Key | None, cost: int = 1) -> None:
        """Takes units for the request, or ends it with 429 or 503."""
        if key is None:
            return
        try:
            decision = limit.take(key, cost)
        except Down:
            flask.abort(503)
        decisions = flask.g.setdefault("redis_rl_decisions", [])
        decisions.append(decision)
        if not decision:
            flask.abort(429)

    @staticmethod
    def _add_headers(response: Any) -> Any:
        response.headers.update(headers(flask.g.get("redis_rl_decisions", [])))
        return response
