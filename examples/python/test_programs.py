"""Runs each program as it stands in its file, against a server of its own address."""

import asyncio
import os
import re
import runpy
import subprocess
import sys
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import redis
import redis.asyncio
from fastapi.testclient import TestClient

import gateway
import quota
from conftest import HERE, PATIENCE, inspect, server_s
from redis_rl import AsyncLimits, Limits

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


@pytest.fixture
def load(monkeypatch):
    """Loads a program with the address of a server."""

    def loaded(program, socket):
        monkeypatch.setenv("LIMITS_URI", f"redis-rl+unix://{socket}")
        return runpy.run_path(HERE / program)

    return loaded


def run(program, socket):
    """Runs a program, and returns what it prints."""
    environment = {**os.environ, "REDIS_URL": f"unix://{socket}", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-B", HERE / program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_program_is_tested_and_listed():
    programs = {path.name for path in HERE.glob("*.py") if not path.name.startswith("test_")} - {"conftest.py"}
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    document = (HERE.parent / "README.md").read_text()
    assert programs == set(re.findall(r"\(python/(\w+\.py)\)", document))
    for program in programs:
        assert f'"{program}"' in tests or f"import {program.removesuffix('.py')}\n" in tests


# Web frameworks


def test_flask_limiter(load, client, socket):
    get = load("flask_limiter_app.py", socket)["app"].test_client().get
    assert [get("/").status_code for _ in range(11)] == [200] * 10 + [429]
    assert [get("/export").status_code for _ in range(3)] == [200, 200, 429]
    assert client.keys("limits:*") and client.info("rl")["rl_slide_granted"] >= 12


def test_slowapi(load, client, socket):
    with TestClient(load("slowapi_app.py", socket)["app"]) as web:
        assert [web.get("/export").status_code for _ in range(3)] == [200, 200, 429]
    assert client.keys("limits:*")


# A gateway


def test_the_gateway(client, socket):
    assert run("gateway.py", socket) == f"20 answers\nONE\nTWO\nTHREE\nada has {20_000 - 10 * 23 - 4 - 6} tokens left\n"
    assert inspect(client, "{llm}all:tokens")["used"] == 20 * 23 + 10
    assert inspect(client, "{llm}running:ada") is None


def test_a_stream_of_the_gateway_that_breaks(client, socket):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with AsyncLimits(other, timeout=PATIENCE) as limits:
            program = gateway.Gateway(limits, gateway.Model())
            sent = []

            async def send(text):
                sent.append(text)
                assert inspect(client, "{llm}running:ada")["held"] == 1
                if text == "TWO":
                    raise ConnectionError("the client has disconnected")

            with pytest.raises(ConnectionError):
                await program.stream("ada", "one two three", send)
            assert sent == ["ONE", "TWO"]
        await other.aclose()

    asyncio.run(main())
    for key, used in (("{llm}tokens:ada", 4 + 4), ("{llm}all:tokens", 4 + 4), ("{llm}requests:ada", 1)):
        assert inspect(client, key)["used"] == used
    assert inspect(client, "{llm}running:ada") is None


# Quotas of the calendar


def test_the_quota(client, socket):
    assert run("quota.py", socket) == "9999 are left\n"
    client.execute_command("RL.FIXED", "quota-month:customer:42", 10_000, "745h", "FORCE", 9_999)
    assert run("quota.py", socket).startswith("The quota is used up. It is full again in ")


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_all_callers_of_a_day_share_a_window(client, socket, unit):
    """Also those that call the command by themselves."""
    with Limits(redis.Redis(unix_socket_path=socket), timeout=PATIENCE) as limits:
        limit, key = quota.Quota(limits, unit, 10, "Europe/Berlin"), f"quota-{unit}:a"
        decision = limit.take("a", 4)
        assert (decision.granted, decision.limit, decision.remaining) == (4, 10, 6)
        end = inspect(client, key)["window_end_ms"]
        local = datetime.fromtimestamp(end / 1000, BERLIN)
        assert (local.hour, local.minute, local.second) == (0, 0, 0) and end / 1000 > server_s(client) - 60
        assert unit != "week" or local.weekday() == 0
        assert unit != "month" or local.day == 1
        # Another caller's clock is fast.
        client.execute_command("RL.FIXED", key, 10, "745h", "UNTIL", end // 1000 + 86_400)
        assert limit.take("a").remaining == 4 and inspect(client, key)["window_end_ms"] == end
        assert not limit.take("a", 5)
