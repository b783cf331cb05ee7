"""Limits for the views of Flask.

    limited = FlaskLimits(app)

    @app.get("/export")
    @limited(exports, key=lambda request: f"user:{flask.g.user}")
    def export(): ...

A denied request gets the status 429, and one that can't be decided 503. Every answer has the headers of its decisions."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import flask
from werkzeug.exceptions import HTTPException

from ._decision import Decision, headers
from ._errors import Unavailable
from ._keys import address_key
from ._policy import Key
from ._sync._limits import Limit
from ._sync._wallet import Wallet
from ._web import PROBLEM, Rule

T = TypeVar("T")
P = ParamSpec("P")
Limiter = Limit | Wallet
_EXTENSION = "redis_rl"


def _address(request: flask.Request) -> str:
    """The address of the client, as the server sees it. Behind a proxy it is that of the proxy."""
    return address_key(request.remote_addr or "unknown")


class FlaskLimits:
    def __init__(self, app: flask.Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        if not app.extensions.get(_EXTENSION):
            app.extensions[_EXTENSION] = self
            app.after_request(_add_headers)

    def __call__(
        self,
        limit: Limiter | Callable[[flask.Request], Limiter],
        key: Callable[[flask.Request], Key | None] = _address,
        cost: int | Callable[[flask.Request], int] = 1,
        skip: Callable[[flask.Request], bool] | None = None,
        denied: Callable[[flask.Request, Decision], Any] | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """A decorator of a view, which may be async."""
        rule = Rule((Limit, Wallet), limit, key, cost, skip, denied)

        def decorate(view: Callable[P, T]) -> Callable[P, T]:
            @functools.wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
                answer = _answer(rule, flask.request)
                return flask.current_app.ensure_sync(view)(*args, **kwargs) if answer is None else answer

            return limited

        return decorate


def _answer(rule: Rule, request: flask.Request) -> Any:
    """The answer to a request that does not go on."""
    try:
        if rule.skip is not None and rule.skip(request):
            return None
        limiter: Limiter = rule.checked(rule.limit(request))
        key = rule.key(request)
        if key is None:
            return None
        decision = limiter.take(key, rule.cost_of(request))
    except HTTPException:
        raise
    except Unavailable:
        flask.abort(503)
    except Exception as error:
        if not rule.lets_through(error):
            raise
        return None
    flask.g.setdefault(_EXTENSION, []).append(decision)
    if decision:
        return None
    if rule.denied is not None:
        return rule.denied(request, decision)
    return flask.Response(json.dumps(decision.problem()), 429, content_type=PROBLEM)


def _add_headers(response: flask.Response) -> flask.Response:
    response.headers.update(headers(flask.g.get(_EXTENSION, [])))
    return response
