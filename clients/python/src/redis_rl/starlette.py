"""A limit for each request of Starlette and FastAPI: a middleware for all of them, a dependency for some.

    user_of = lambda request: request.headers.get("x-user") or request.client.host
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limit=api, key=user_of)])

    @app.get("/export", dependencies=[Depends(RateLimit(exports, key=user_of))])

A denied request gets the status 429, and one that can't be decided 503. Every answer has the headers of its decisions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Union

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._aio import AsyncLimit
from ._decision import Decision, headers
from ._errors import Down, RateLimited
from ._policy import Key

KeyOf = Callable[[Any], Union[Key, None, Awaitable[Union[Key, None]]]]
CostOf = Union[int, Callable[[Any], int]]
_DECISIONS = "redis_rl.decisions"


def client_address(request: HTTPConnection) -> str:
    """The address of the client, as the server sees it. Behind a proxy it is that of the proxy."""
    return request.client.host if request.client else "unknown"


class _Rule:
    def __init__(self, limit: AsyncLimit, key: KeyOf = client_address, cost: CostOf = 1) -> None:
        if not isinstance(limit, AsyncLimit):
            raise TypeError("the limit is one of redis.asyncio: Limits(redis.asyncio.Redis()).limit(...)")
        self._limit = limit
        self._key = key
        self._cost = cost

    async def _take(self, request: Request) -> Decision | None:
        """None: the request has no key, and is not limited."""
        key = self._key(request)
        if inspect.isawaitable(key):
            key = await key
        if key is None:
            return None
        decision = await self._limit.take(key, self._cost(request) if callable(self._cost) else self._cost)
        request.scope.setdefault(_DECISIONS, []).append(decision)
        return decision


def _denied(decisions: list[Decision]) -> Response:
    return PlainTextResponse("Too many requests", 429, headers(decisions))


class RateLimitMiddleware(_Rule):
    """Takes `cost` units of `limit` for each HTTP request, from the key that `key(request)` names. If that is None, the
    request is not limited. It adds the headers of what `RateLimit` decides, too."""

    def __init__(self, app: ASGIApp, limit: AsyncLimit, key: KeyOf = client_address, cost: CostOf = 1) -> None:
        super().__init__(limit, key, cost)
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        decisions: list[Decision] = scope.setdefault(_DECISIONS, [])
        try:
            decision = await self._take(Request(scope))
        except Down:
            await PlainTextResponse("Service unavailable", 503)(scope, receive, send)
            return
        if decision is not None and not decision:
            await _denied(decisions)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = [(name.lower().encode(), text.encode()) for name, text in headers(decisions).items()]
                names = {name for name, _ in fields}
                kept = [(name, text) for name, text in message.get("headers", []) if name.lower() not in names]
                message = {**message, "headers": [*kept, *fields]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


class RateLimit(_Rule):
    """A dependency of FastAPI for one path, or for a router. The answer has its headers if the app has
    RateLimitMiddleware, or if the request is denied."""

    async def __call__(self, request: Request) -> Decision | None:
        try:
            decision = await self._take(request)
            if decision is not None:
                decision.raise_if_denied()
            return decision
        except RateLimited:
            raise HTTPException(429, "Too many requests", headers(request.scope[_DECISIONS])) from None
        except Down as down:
            raise HTTPException(503, "Service unavailable") from down
