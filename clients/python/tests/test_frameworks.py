"""Starlette, FastAPI and Flask: statuses, headers and bodies."""

import asyncio

import flask
import httpx
import pytest
import redis
import redis.asyncio
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route

from helpers import limits_of
from redis_rl import Fixed, Gcra, Named
from redis_rl.flask import FlaskLimits
from redis_rl.starlette import RateLimit, RateLimitMiddleware


def run(socket, test, **options):
    async def main():
        client = redis.asyncio.Redis(unix_socket_path=socket)
        async with limits_of(client, **options) as limits:
            await test(limits)
        await client.aclose()

    asyncio.run(main())


def user_of(request):
    """As if the request had been authenticated."""
    user = request.headers.get("x-user")
    return user and f"user:{user}"


def asking(app):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("2001:db8:1:2:3::4", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def app_of(limits, middleware=True, **options):
    api, exports = limits.limit("api", Fixed("4/h")), limits.limit("export", Fixed("10/h"))
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limit=api, key=user_of, **options)] if middleware else [])

    @app.get("/")
    async def home():
        return "home"

    @app.get("/export", dependencies=[Depends(RateLimit(exports, key=user_of, cost=6))])
    async def export():
        return "export"

    @app.get("/own", dependencies=[Depends(RateLimit(exports, key=user_of, cost=6))])
    async def own():
        return PlainTextResponse("own")

    @app.get("/fails")
    async def fails():
        raise KeyError("a defect")

    return app


ADA = {"x-user": "ada"}
PROBLEM = {
    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "title": "Request cannot be satisfied as assigned quota has been exceeded",
    "status": 429,
}


def test_fastapi(socket):
    async def test(limits):
        async with asking(app_of(limits)) as web:
            answer = await web.get("/", headers=ADA)
            assert answer.status_code == 200 and answer.headers["RateLimit-Policy"] == '"api";q=4;w=3600'
            assert answer.headers["X-RateLimit-Remaining"] == "3" and "Retry-After" not in answer.headers
            answer = await web.get("/export", headers=ADA)
            assert answer.status_code == 200
            assert answer.headers["RateLimit-Policy"] == '"api";q=4;w=3600, "export";q=10;w=3600'
            assert answer.headers["RateLimit"].startswith('"api";r=2;t=3') and len(answer.headers.get_list("RateLimit")) == 1
            answer = await web.get("/own", headers=ADA)
            assert answer.status_code == 429 and answer.headers["RateLimit"].count(";r=") == 2
            assert 3500 <= int(answer.headers["Retry-After"]) <= 3600 and answer.headers["X-RateLimit-Limit"] == "10"
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json() == {**PROBLEM, "violated-policies": ["export"]}
            # Errors have the headers, too.
            answer = await web.get("/fails", headers=ADA)
            assert answer.status_code == 500 and answer.headers["RateLimit"].startswith('"api";r=0')
            answer = await web.get("/nowhere", headers=ADA)
            assert answer.status_code == 429 and answer.json() == {**PROBLEM, "violated-policies": ["api"]}
            # Another user, and a request without a key.
            assert (await web.get("/", headers={"x-user": "bob"})).status_code == 200
            assert (await web.get("/nowhere", headers={"x-user": "bob"})).headers["RateLimit"]
            answer = await web.get("/")
            assert answer.status_code == 200 and "RateLimit" not in answer.headers

    run(socket, test)


def test_an_own_handler_of_errors(socket):
    async def test(limits):
        app = app_of(limits)

        @app.exception_handler(500)
        async def handle(request, error):
            return JSONResponse({"error": repr(error)}, 500)

        async with asking(app) as web:
            answer = await web.get("/fails", headers=ADA)
            assert answer.status_code == 500 and answer.json() == {"error": "KeyError('a defect')"}
            assert answer.headers["X-RateLimit-Remaining"] == "3"

    run(socket, test)


def test_a_dependency_without_the_middleware(socket):
    async def test(limits):
        async with asking(app_of(limits, middleware=False)) as web:
            answer = await web.get("/export", headers=ADA)
            assert answer.status_code == 200 and answer.headers["X-RateLimit-Remaining"] == "4"
            answer = await web.get("/export", headers=ADA)
            assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 3500

    run(socket, test)


def test_mounted_apps_and_routers(socket):
    async def test(limits):
        inner = app_of(limits, middleware=False)

        async def plain(request):
            return PlainTextResponse("plain")

        limited = [Middleware(RateLimitMiddleware, limit=limits.limit("mounted", Fixed("9/h")), key=user_of)]
        outer = FastAPI(middleware=[Middleware(RateLimitMiddleware)])
        outer.router.routes.append(Mount("/router", routes=[Route("/", plain)], middleware=limited))
        outer.mount("/app", inner)
        async with asking(outer) as web:
            # The dependency denies in an app without the middleware, and the middleware of the app around it adds the headers.
            assert (await web.get("/app/export", headers=ADA)).status_code == 200
            answer = await web.get("/app/export", headers=ADA)
            assert answer.status_code == 429 and len(answer.headers.get_list("RateLimit")) == 1
            assert answer.headers["RateLimit"].startswith('"export";r=4;')
            # A router that is mounted answers to a path that it does not have.
            assert (await web.get("/router/", headers=ADA)).text == "plain"
            answer = await web.get("/router/nowhere", headers=ADA)
            assert answer.status_code == 404 and answer.json() == {"detail": "Not Found"}
            assert answer.headers["RateLimit"].startswith('"mounted";r=7;')

    run(socket, test)


@pytest.mark.parametrize("on_down", ["closed", "open"])
@pytest.mark.parametrize("kind", [Starlette, FastAPI])
def test_an_answer_of_the_key_function(kind, on_down, socket):
    def signed_in(request):
        raise HTTPException(401, "sign in", {"WWW-Authenticate": "Bearer"})

    async def test(limits):
        api = limits.limit("api", Fixed("4/h"))
        app = kind(middleware=[Middleware(RateLimitMiddleware, limit=api, key=signed_in)])
        async with asking(app) as web:
            answer = await web.get("/")
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.text == ("sign in" if kind is Starlette else '{"detail":"sign in"}')

            def handle(request, error):
                return PlainTextResponse(f"own: {error.detail}", 402)

            app.add_exception_handler(401, handle)
            assert (await web.get("/")).text == "own: sign in"

    run(socket, test, on_down=on_down)


def test_what_an_adapter_takes(socket):
    """A limit for each plan, a wallet, keys and costs of the request, what is skipped, and an own answer."""

    async def test(limits):
        free, pro = limits.limit("free", Fixed("2/h")), limits.wallet(limits.limit("pro", Fixed("100/h")), batch=10)

        async def plan(request):
            return pro if request.headers.get("x-plan") == "pro" else free

        async def denied(request, decision):
            return JSONResponse({"wait": decision.wait > 0}, 420)

        app = app_of(limits, middleware=False)
        app.add_middleware(
            RateLimitMiddleware,
            limit=plan,
            cost=lambda request: int(request.headers.get("x-cost", 1)),
            skip=lambda request: request.url.path == "/nowhere",
            denied=denied,
        )
        async with asking(app) as web:
            assert (await web.get("/")).headers["RateLimit-Policy"] == '"free";q=2;w=3600'
            assert (await limits.limit("free", Fixed("2/h")).peek("address:2001:db8:1:2::/64")).remaining == 1
            answer = await web.get("/", headers={"x-cost": "2"})
            assert answer.status_code == 420 and answer.json() == {"wait": True} and "RateLimit" in answer.headers
            answer = await web.get("/", headers={"x-plan": "pro", "x-cost": "2"})
            assert answer.status_code == 200 and answer.headers["X-RateLimit-Remaining"] == "98"
            assert "RateLimit" not in (await web.get("/nowhere")).headers
        with pytest.raises(TypeError, match="AsyncLimit or a AsyncWallet|AsyncLimit"):
            RateLimit(limits)

    run(socket, test)


@pytest.mark.parametrize(("on_down", "status"), [("closed", 503), ("open", 200), (Gcra("1/h"), 200)], ids=str)
@pytest.mark.parametrize("path", ["/", "/export"])
def test_fastapi_without_a_server(on_down, status, path, dead_socket):
    async def test(limits):
        for middleware in (True, False) if path == "/export" and on_down != Gcra("1/h") else (True,):
            async with asking(app_of(limits, middleware=middleware)) as web:
                # What the rule of the export costs is above the local limit.
                wanted = 429 if path == "/export" and isinstance(on_down, Gcra) else status
                answer = await web.get(path, headers=ADA)
                assert answer.status_code == wanted and "RateLimit" not in answer.headers

    run(dead_socket, test, on_down=on_down, timeout=0.3, connect_timeout=0.3)


@pytest.mark.parametrize(("on_down", "status"), [("closed", 500), ("open", 200), (Gcra("1/h"), 200)], ids=str)
@pytest.mark.parametrize("wrong", ["key", "cost", "limit", "type"])
def test_errors_of_the_program(on_down, status, wrong, socket, client, caplog):
    """When the adapter is open or local, they let through, and are logged."""
    client.rpush("api:user:ada", "x")

    def fails(request):
        if "x-good" not in request.headers:
            raise KeyError("a defect")
        return {"key": "user:good", "cost": 1, "limit": request.headers and known[0]}[wrong]

    known = []
    options = {} if wrong == "type" else {wrong: fails}

    async def test(limits):
        known[:] = [limits.limit("api", Fixed("4/h"))]
        app = app_of(limits, middleware=False)
        app.add_middleware(RateLimitMiddleware, **{"limit": known[0], "key": user_of, **options})
        async with asking(app) as web:
            # A function of the request has returned a limit before.
            await web.get("/", headers={"x-user": "bob", "x-good": "1"})
            assert (await web.get("/", headers=ADA)).status_code == status
        assert status == 500 or "goes on without its limit" in caplog.text

    run(socket, test, on_down=on_down)
    limits = limits_of(redis.Redis(unix_socket_path=socket), on_down=on_down)
    known[:] = [limits.limit("api", Fixed("4/h"))]
    app = flask.Flask("test")

    @app.get("/")
    @FlaskLimits(app)(**{"limit": known[0], "key": user_of, **options})
    def home():
        return "home"

    app.test_client().get("/", headers={"x-user": "bob", "x-good": "1"})
    assert app.test_client().get("/", headers=ADA).status_code == status


def flask_app(limits, **options):
    limited = FlaskLimits()
    api, day = limits.limit("api", Fixed("2/h")), limits.limit("day", Fixed("5/d"))
    app = flask.Flask("test")

    @app.get("/")
    @limited(api, **{"key": user_of, **options})
    @limited(day, key=user_of)
    def home():
        return "home"

    @app.get("/async")
    @limited(api, **{"key": user_of, **options})
    async def tasks():
        await asyncio.sleep(0)
        return "async"

    @app.get("/fails")
    @limited(api, **{"key": user_of, **options})
    def fails():
        raise KeyError("a defect")

    # Twice does no harm.
    limited.init_app(app)
    FlaskLimits(app)
    return app.test_client()


def test_flask(socket):
    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        web = flask_app(limits)
        answers = [web.get("/", headers=ADA) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["RateLimit-Policy"] == '"api";q=2;w=3600, "day";q=5;w=86400'
        assert answers[2].headers["RateLimit-Policy"] == '"api";q=2;w=3600' and int(answers[2].headers["Retry-After"]) > 3000
        assert answers[2].content_type == "application/problem+json"
        assert answers[2].json == {**PROBLEM, "violated-policies": ["api"]}
        assert web.get("/", headers={"x-user": "bob"}).status_code == 200
        answer = web.get("/")
        assert answer.status_code == 200 and "RateLimit" not in answer.headers
        # Views that are async, and errors.
        answer = web.get("/async", headers={"x-user": "bob"})
        assert answer.status_code == 200 and answer.text == "async" and answer.headers["X-RateLimit-Remaining"] == "0"
        answer = web.get("/fails", headers={"x-user": "eve"})
        assert answer.status_code == 500 and answer.headers["X-RateLimit-Remaining"] == "1"


def test_flask_with_a_wallet_and_an_own_answer(socket):
    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        wallet = limits.wallet(limits.limit("api", Fixed("100/h")), batch=10)
        none = limits.limit("none", Fixed("0/h"))
        app = flask.Flask("test")
        limited = FlaskLimits(app)

        @app.get("/")
        @limited(
            lambda request: none if "x-none" in request.headers else wallet,
            cost=lambda request: 2,
            skip=lambda request: "x-skip" in request.headers,
            denied=lambda request, decision: (f"not now: {decision.name}", 420),
        )
        def home():
            return "home"

        web = app.test_client()
        assert web.get("/").headers["X-RateLimit-Remaining"] == "98"
        assert limits.limit("api", Fixed("100/h")).peek("address:127.0.0.1").remaining == 90
        answer = web.get("/", headers={"x-none": "1"})
        assert (answer.status_code, answer.text, answer.headers["X-RateLimit-Limit"]) == (420, "not now: none", "0")
        assert "RateLimit" not in web.get("/", headers={"x-skip": "1"}).headers
        with pytest.raises(TypeError, match="Limit or a Wallet"):
            limited(limits)


@pytest.mark.parametrize(("on_down", "status"), [("closed", 503), ("open", 200), (Gcra("1/h"), 200)], ids=str)
def test_flask_without_a_server(on_down, status, dead_socket):
    web = flask_app(limits_of(redis.Redis(unix_socket_path=dead_socket), on_down=on_down))
    answer = web.get("/", headers=ADA)
    assert answer.status_code == status and "RateLimit" not in answer.headers


NAMED = Named("policy:api", Fixed("2/h"), lambda key: [f"policy:{key}"])


def statuses_of_a_named_limit(client, ask):
    """What requests of ada and bob are answered while an operator changes the limit, overrides it, and tries it."""
    statuses = [ask("ada") for _ in range(3)]
    for rule in ("GCRA 5 1h", "GCRA 1 1h", "GCRA 1 1h SHADOW"):
        client.execute_command("RL.POLICY", "policy:api", *rule.split())
        statuses.append(ask("ada"))
    client.execute_command("RL.POLICY", "policy:api", "GCRA", "0", "1h")
    client.execute_command("RL.POLICY", "policy:user:bob", "SLIDE", "9", "1h")
    return [*statuses, ask("ada"), ask("bob")]


STATUSES = [(200, "2"), (200, "2"), (429, "2"), (200, "5"), (429, "1"), (200, "1"), (429, "0"), (200, "9")]


def test_a_limit_that_an_operator_changes_in_fastapi(socket, client):
    async def test(limits):
        app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limit=limits.limit("api", NAMED), key=user_of)])

        @app.get("/")
        async def home():
            return "home"

        async with asking(app) as web:
            loop = asyncio.get_running_loop()

            def ask(user):
                answer = asyncio.run_coroutine_threadsafe(web.get("/", headers={"x-user": user}), loop).result()
                return answer.status_code, answer.headers["X-RateLimit-Limit"]

            assert await asyncio.to_thread(statuses_of_a_named_limit, client, ask) == STATUSES

    run(socket, test)


def test_a_limit_that_an_operator_changes_in_flask(socket, client):
    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        app = flask.Flask("test")
        limited = FlaskLimits(app)

        @app.get("/")
        @limited(limits.limit("api", NAMED), key=user_of)
        def home():
            return "home"

        def ask(user):
            answer = app.test_client().get("/", headers={"x-user": user})
            return answer.status_code, answer.headers["X-RateLimit-Limit"]

        assert statuses_of_a_named_limit(client, ask) == STATUSES
