"""Starlette, FastAPI and Flask: statuses and headers."""

import asyncio

import flask
import httpx
import pytest
import redis
import redis.asyncio
from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

from conftest import PATIENCE
from redis_rl import Fixed, Limits
from redis_rl.fastapi import RateLimit, RateLimitMiddleware
from redis_rl.flask import FlaskLimits


def run(socket, test, **options):
    async def main():
        client = redis.asyncio.Redis(unix_socket_path=socket)
        async with Limits(client, **{"patience": PATIENCE, **options}) as limits:
            await test(limits)
        await client.aclose()

    asyncio.run(main())


def user_of(request):
    return request.headers.get("x-user")


def app_of(limits):
    api, exports = limits.limit("api", Fixed("4/h")), limits.limit("export", Fixed("10/h"))
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limit=api, key=user_of)])

    @app.get("/")
    async def home():
        return "home"

    @app.get("/export", dependencies=[Depends(RateLimit(exports, key=user_of, cost=6))])
    async def export():
        return "export"

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_fastapi(socket):
    async def test(limits):
        async with app_of(limits) as web:
            ada = {"x-user": "ada"}
            answer = await web.get("/", headers=ada)
            assert answer.status_code == 200 and answer.headers["RateLimit-Policy"] == '"api";q=4;w=3600'
            assert answer.headers["X-RateLimit-Remaining"] == "3" and "Retry-After" not in answer.headers
            answer = await web.get("/export", headers=ada)
            assert (
                answer.status_code == 200 and answer.headers["RateLimit-Policy"] == '"api";q=4;w=3600, "export";q=10;w=3600'
            )
            assert answer.headers["RateLimit"].startswith('"api";r=2;t=3') and len(answer.headers.get_list("RateLimit")) == 1
            answer = await web.get("/export", headers=ada)
            assert answer.status_code == 429 and answer.headers["RateLimit"].count(";r=") == 2
            assert 3500 <= int(answer.headers["Retry-After"]) <= 3600 and answer.headers["X-RateLimit-Limit"] == "10"
            assert (await web.get("/", headers=ada)).status_code == 200
            answer = await web.get("/", headers=ada)
            assert (
                answer.status_code == 429
                and answer.headers["X-RateLimit-Limit"] == "4"
                and answer.text == "Too many requests"
            )
            # Another user, and a request without a key.
            assert (await web.get("/", headers={"x-user": "bob"})).status_code == 200
            answer = await web.get("/")
            assert answer.status_code == 200 and "RateLimit" not in answer.headers

    run(socket, test)


@pytest.mark.parametrize(("on_down", "status"), [("closed", 503), ("open", 200)])
@pytest.mark.parametrize("path", ["/", "/export"])
def test_fastapi_without_a_server(on_down, status, path, dead_socket):
    async def test(limits):
        async with app_of(limits) as web:
            answer = await web.get(path, headers={"x-user": "ada"})
            assert answer.status_code == status and "RateLimit" not in answer.headers

    run(dead_socket, test, on_down=on_down, patience=0.3)


def flask_app(limits):
    app = flask.Flask("test")
    limited = FlaskLimits(app)
    api, day = limits.limit("api", Fixed("2/h")), limits.limit("day", Fixed("5/d"))

    @app.get("/")
    @limited(api, key=lambda: flask.request.headers.get("x-user"))
    @limited(day, key=lambda: flask.request.headers.get("x-user"))
    def home():
        return "home"

    return app.test_client()


def test_flask(socket):
    web = flask_app(Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE))
    answers = [web.get("/", headers={"x-user": "ada"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit-Policy"] == '"api";q=2;w=3600, "day";q=5;w=86400'
    assert answers[2].headers["RateLimit-Policy"] == '"api";q=2;w=3600' and int(answers[2].headers["Retry-After"]) > 3000
    assert web.get("/", headers={"x-user": "bob"}).status_code == 200
    answer = web.get("/")
    assert answer.status_code == 200 and "RateLimit" not in answer.headers


@pytest.mark.parametrize(("on_down", "status"), [("closed", 503), ("open", 200)])
def test_flask_without_a_server(on_down, status, dead_socket):
    web = flask_app(Limits(redis.Redis(unix_socket_path=dead_socket), on_down=on_down, patience=0.3))
    assert web.get("/", headers={"x-user": "ada"}).status_code == status
