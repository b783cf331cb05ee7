"""Limits for the requests of Starlette and FastAPI: a middleware for all of them, a dependency of FastAPI for some.

    app.add_middleware(RateLimitMiddleware, limit=api, key=user_of)

    @app.get("/export", dependencies=[Depends(RateLimit(exports, key=user_of))])

A denied request gets the status 429, and one that can't be decided 503. Every answer has the headers of its decisions, also
those of `RateLimit`, and errors, if the app has the middleware; its limit may be None."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._async._limits import AsyncLimit
from ._async._wallet import AsyncWallet
from ._decision import Decision, headers
from ._errors import Unavailable
from ._keys import address_key
from ._policy import Key
from ._web import PROBLEM, Rule

Limiter = AsyncLimit | AsyncWallet
LimitOf = Limiter | Callable[[Any], Limiter | Awaitable[Limiter]]
KeyOf = Callable[[Any], Key | None | Awaitable[Key | None]]
CostOf = int | Callable[[Any], int | Awaitable[int]]
SkipOf = Callable[[Any], bool | Awaitable[bool]]
DeniedOf = Callable[[Any, Decision], Response | Awaitable[Response]]
_DECISIONS = "redis_rl.decisions"
_MIDDLEWARE = "redis_rl.middleware"


def _address(request: HTTPConnection) -> str:
    """The address of the client, as the server sees it. Behind a proxy it is that of the proxy."""
    return address_key(request.client.host if request.client else "unknown")


class _Stop(Exception):
    """Ends a request with this answer: the middleware sends it."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer


async def _value(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def _decision(rule: Rule, request: Request) -> Decision | None:
    """None: the request is not limited. Raises _Stop if it does not go on."""
    try:
        if rule.skip is not None and await _value(rule.skip(request)):
            return None
        limiter: Limiter = rule.checked(await _value(rule.limit(request)))
        key = await _value(rule.key(request))
        if key is None:
            return None
        decision = await limiter.take(key, await _value(rule.cost_of(request)))
    except HTTPException:
        raise
    except Unavailable as error:
        raise _Stop(PlainTextResponse("Service unavailable", 503)) from error
    except Exception as error:
        if not rule.lets_through(error):
            raise
        return None
    request.scope.setdefault(_DECISIONS, []).append(decision)
    if decision:
        return decision
    if rule.denied is not None:
        raise _Stop(await _value(rule.denied(request, decision)))
    raise _Stop(JSONResponse(decision.problem(), 429, media_type=PROBLEM))


class RateLimitMiddleware:
    """Takes units of a limit for each HTTP request, and adds the headers to all answers."""

    def __init__(
        self,
        app: ASGIApp,
        limit: LimitOf | None = None,
        key: KeyOf = _address,
        cost: CostOf = 1,
        skip: SkipOf | None = None,
        denied: DeniedOf | None = None,
    ) -> None:
        self.app = app
        self._rule = None if limit is None else Rule((AsyncLimit, AsyncWallet), limit, key, cost, skip, denied)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[_MIDDLEWARE] = scope.get("app")
        decisions: list[Decision] = scope.setdefault(_DECISIONS, [])
        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                fields = [(name.lower().encode(), text.encode()) for name, text in headers(decisions).items()]
                names = {name for name, _ in fields}
                kept = [(name, text) for name, text in message.get("headers", []) if name.lower() not in names]
                message = {**message, "headers": [*kept, *fields]}
            await send(message)

        try:
            if self._rule is not None:
                await _decision(self._rule, Request(scope, receive))
            await self.app(scope, receive, send_with_headers)
        except _Stop as stop:
            await stop.answer(scope, receive, send_with_headers)
        except HTTPException as error:
            # A function of the rule has raised it, or a mounted router. Starlette would answer to the first with 500.
            if begun:
                raise
            await (await _answer_to(error, scope, receive))(scope, receive, send_with_headers)
        except Exception as error:
            # In debug mode Starlette answers by itself.
            if not begun and not getattr(scope.get("app"), "debug", False):
                await (await _answer_to(error, scope, receive))(scope, receive, send_with_headers)
            raise


async def _answer_to(error: Exception, scope: Scope, receive: Receive) -> Response:
    """What Starlette answers to an error outside of this middleware, where the headers would be missing."""
    handlers = getattr(scope.get("app"), "exception_handlers", {})
    if isinstance(error, HTTPException):
        kinds: list[Any] = [error.status_code, *(kind for kind in type(error).__mro__ if issubclass(kind, HTTPException))]
        default: Response = PlainTextResponse(error.detail, error.status_code, error.headers)
    else:
        kinds, default = [500, Exception], PlainTextResponse("Internal Server Error", 500)
    handler = next((handlers[kind] for kind in kinds if kind in handlers), None)
    if handler is None:
        return default
    if inspect.iscoroutinefunction(handler):
        answer: Response = await handler(Request(scope, receive), error)
        return answer
    return await run_in_threadpool(handler, Request(scope, receive), error)


class RateLimit:
    """A dependency of FastAPI for one path, or for a router."""

    def __init__(
        self,
        limit: LimitOf,
        key: KeyOf = _address,
        cost: CostOf = 1,
        skip: SkipOf | None = None,
        denied: DeniedOf | None = None,
    ) -> None:
        self._rule = Rule((AsyncLimit, AsyncWallet), limit, key, cost, skip, denied)

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        # Of the same app: in one that is mounted, Starlette would answer to _Stop with 500 before a middleware around it could.
        has_middleware = request.scope.get(_MIDDLEWARE) is request.app
        try:
            decision = await _decision(self._rule, request)
        except _Stop as stop:
            if has_middleware:
                raise
            # FastAPI makes the answer.
            raise HTTPException(stop.answer.status_code, headers=headers(request.scope.get(_DECISIONS, []))) from stop
        if not has_middleware:
            response.headers.update(headers(request.scope.get(_DECISIONS, [])))
        return decision
