"""Runs each program as it stands in its file, against a server of its own address."""

import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import httpx
import pytest
import redis
import redis.asyncio
from fastapi.testclient import TestClient

import gateway
import quota
import redis_rl
from conftest import HERE, PATIENCE, eventually, inspect, server_s
from redis_rl import Limits

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


@pytest.fixture
def load(monkeypatch):
    """Loads a program with the address of a server. On a busy machine a reply may take longer than by default."""

    def loaded(program, socket, patience=PATIENCE):
        monkeypatch.setenv("REDIS_URL", f"unix://{socket}")
        monkeypatch.setenv("LIMITS_URI", f"redis-rl+unix://{socket}")
        assert redis_rl.Limits.__defaults__ == ("", "closed", 1.0)
        monkeypatch.setattr(redis_rl.Limits, "__defaults__", ("", "closed", patience))
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
        assert f'"{program}"' in tests or f"import {program.removesuffix('.py')}\n" in tests or program == "central_limits.py"


# Web frameworks


def check_web(get, client, prefix):
    """`get` makes a request. 20 at once, then 100 a minute; two exports an hour."""
    first = get("/")
    assert first.status_code == 200 and first.headers["RateLimit-Policy"] == '"api";q=100;w=60'
    assert re.fullmatch(r'"api";r=19;t=\d+', first.headers["RateLimit"]) and "Retry-After" not in first.headers
    answers = [get("/export") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["RateLimit-Policy"] == '"api";q=100;w=60, "export";q=2;w=3600'
    assert 3500 < int(answers[2].headers["Retry-After"]) <= 3600
    [key] = client.keys(f"{prefix}export:*")
    assert inspect(client, key)["used"] == 2


def check_flood(client, statuses):
    """As many were let through as the limit allows."""
    assert len(client.keys("web:api:*")) == 1 and sorted(set(statuses)) == [200, 429]
    granted = client.info("rl")["rl_gcra_granted"]
    assert statuses.count(200) >= 20 and granted >= 20


# More requests at the same time than a client has connections.
FLOOD = 300


def test_flask(load, client, socket):
    app = load("flask_app.py", socket)["app"]
    check_web(app.test_client().get, client, "web:")
    client.flushall()
    before = client.info("rl")["rl_gcra_granted"]
    with concurrent.futures.ThreadPoolExecutor(FLOOD) as threads:
        statuses = list(threads.map(lambda _: app.test_client().get("/").status_code, range(FLOOD)))
    check_flood(client, statuses)
    assert statuses.count(200) == client.info("rl")["rl_gcra_granted"] - before


def test_fastapi(load, client, socket):
    app = load("fastapi_app.py", socket)["app"]
    with TestClient(app) as web:
        check_web(web.get, client, "web:")


def test_a_flood_of_requests_to_fastapi(load, client, socket):
    program = load("fastapi_app.py", socket)
    before = client.info("rl")["rl_gcra_granted"]

    async def flood():
        transport = httpx.ASGITransport(program["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as web:
            answers = await asyncio.gather(*(web.get("/") for _ in range(FLOOD)))
        await program["limits"].aclose()
        await program["client"].aclose()
        return [answer.status_code for answer in answers]

    statuses = asyncio.run(flood())
    check_flood(client, statuses)
    assert statuses.count(200) == client.info("rl")["rl_gcra_granted"] - before


def test_without_a_server(load, dead_socket, monkeypatch):
    flask = load("flask_app.py", dead_socket, 0.3)["app"]
    answer = flask.test_client().get("/export")
    assert answer.status_code == 200 and "RateLimit" not in answer.headers
    monkeypatch.undo()
    with TestClient(load("fastapi_app.py", dead_socket, 0.3)["app"]) as web:
        answer = web.get("/export")
        assert answer.status_code == 503 and "RateLimit" not in answer.headers


def test_flask_limiter(load, client, socket):
    get = load("flask_limiter_app.py", socket)["app"].test_client().get
    assert [get("/").status_code for _ in range(11)] == [200] * 10 + [429]
    assert [get("/export").status_code for _ in range(3)] == [200, 200, 429]
    assert client.keys("limits:*") and client.info("rl")["rl_slide_granted"] >= 12


def test_slowapi(load, client, socket):
    with TestClient(load("slowapi_app.py", socket)["app"]) as web:
        assert [web.get("/export").status_code for _ in range(3)] == [200, 200, 429]
    assert client.keys("limits:*")


# Waiting, charging, holding


def test_four_processes_call_a_partner(client, socket):
    before = client.info("rl")
    environment = {**os.environ, "REDIS_URL": f"unix://{socket}", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-B", HERE / "partner.py"]
    start = server_s(client)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as processes:
        try:
            # The connection of a process that waits breaks, as in a restart of the server. It stands in line again.
            waiting = lambda: [each["id"] for each in client.client_list() if "b" in each["flags"]]
            eventually(waiting)
            client.client_kill_filter(_id=waiting()[0])
            output = processes.communicate(timeout=120)[0]
        finally:
            # All four, which would otherwise try again for ever.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(processes.pid, signal.SIGKILL)
    assert processes.returncode == 0
    jobs = re.findall(r"job (\d+) calls", output)
    assert sorted(map(int, jobs)) == list(range(24))
    after = client.info("rl")
    assert after["rl_slide_granted"] - before["rl_slide_granted"] == 24
    assert after["rl_waits_abandoned"] - before["rl_waits_abandoned"] <= 1
    assert after["rl_waits"] > before["rl_waits"] and after["rl_wait_timeouts"] == before["rl_wait_timeouts"]
    # 24 grants of at most 5 in any second take at least 4 seconds by the server's clock.
    assert server_s(client) - start > 4


def test_tokens(client, socket):
    # 30 calls of about 1010 tokens do not fit into 10 000 at once. They fit because each is settled to less.
    assert run("tokens.py", socket) == f"30 answers, {30 * 29} tokens used\n"
    assert inspect(client, "tokens:team-a")["used"] == 30 * 29 and inspect(client, "tokens:team-a")["ids"] == 0


def test_the_gateway(client, socket):
    assert run("gateway.py", socket) == f"20 answers\nONE\nTWO\nTHREE\nada has {20_000 - 10 * 23 - 4 - 6} tokens left\n"
    assert inspect(client, "{llm}:all:tokens")["used"] == 20 * 23 + 10
    assert inspect(client, "{llm}:running:ada") is None


def test_a_stream_of_the_gateway_that_breaks(client, socket):
    async def main():
        other = redis.asyncio.Redis(unix_socket_path=socket)
        async with Limits(other, patience=PATIENCE) as limits:
            program = gateway.Gateway(limits, gateway.Model())
            sent = []

            async def send(text):
                sent.append(text)
                assert inspect(client, "{llm}:running:ada")["held"] == 1
                if text == "TWO":
                    raise ConnectionError("the client has disconnected")

            with pytest.raises(ConnectionError):
                await program.stream("ada", "one two three", send)
            assert sent == ["ONE", "TWO"]
        await other.aclose()

    asyncio.run(main())
    for key, used in (("{llm}:tokens:ada", 4 + 4), ("{llm}:all:tokens", 4 + 4), ("{llm}:requests:ada", 1)):
        assert inspect(client, key)["used"] == used
    assert inspect(client, "{llm}:running:ada") is None


def test_jobs(client, socket):
    before = client.info("rl")["rl_waits"]
    output = run("leases.py", socket)
    done = sorted(re.findall(r"^the report of customer (\d) is done$", output, re.MULTILINE))
    assert done == list("0123456789") and inspect(client, "reports:all") is None
    # At least the six that found no place.
    assert client.info("rl")["rl_waits"] >= before + 6


def test_events(client, socket):
    before = client.info("commandstats")
    calls = lambda name, stats: stats.get(f"cmdstat_rl.{name}", {"calls": 0})["calls"]
    assert run("events.py", socket) == "250 events recorded\n5 attempts let through\n"
    after = client.info("commandstats")
    assert inspect(client, "events:site-1")["used"] == 250
    assert calls("slide", after) - calls("slide", before) == 3
    # Five that are granted, and the first that is denied.
    assert calls("fixed", after) - calls("fixed", before) == 6


def test_central_limits(client, socket):
    assert run("central_limits.py", socket) == "19 are left\n"
    client.hset("limits", "api", "GCRA 0 1")
    assert run("central_limits.py", socket) == "All calls are refused now.\n"
    client.hset("limits", "api", "GCRA 1 1h")
    client.delete("limit:api:gcra:user:42")
    assert run("central_limits.py", socket) == "0 are left\n"
    assert re.fullmatch(r"Try again in 3\d{3}(\.\d+)? seconds\.\n", run("central_limits.py", socket))


# Quotas of the calendar


def test_the_quota(client, socket):
    assert run("quota.py", socket) == "9999 are left\n"
    client.execute_command("RL.FIXED", "quota:month:customer:42", 10_000, "746h", "FORCE", 9_999)
    assert run("quota.py", socket).startswith("The quota is used up. It is full again in ")


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "unit, now, end",
    [
        ("day", "2026-11-21T22:59:59", "2026-11-21T23:00:00"),
        ("day", "2026-11-21T23:00:00", "2026-11-22T23:00:00"),
        # The clocks go forward on 29 March and back on 25 October: these days have 23 and 25 hours.
        ("day", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),
        ("day", "2026-03-29T12:00:00", "2026-03-29T22:00:00"),
        ("day", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
        ("day", "2026-10-25T00:30:00", "2026-10-25T23:00:00"),
        ("day", "2026-10-25T01:30:00", "2026-10-25T23:00:00"),
        ("week", "2026-03-22T23:00:00", "2026-03-29T22:00:00"),
        ("week", "2026-10-25T22:59:59", "2026-10-25T23:00:00"),
        ("week", "2026-10-18T22:00:00", "2026-10-25T23:00:00"),
        ("month", "2026-02-28T12:00:00", "2026-02-28T23:00:00"),
        ("month", "2028-02-28T23:00:00", "2028-02-29T23:00:00"),
        ("month", "2026-03-31T21:59:59", "2026-03-31T22:00:00"),
        ("month", "2026-09-30T22:00:00", "2026-10-31T23:00:00"),
        ("month", "2026-12-31T23:00:00", "2027-01-31T23:00:00"),
    ],
)
def test_windows_end_in_berlin(unit, now, end):
    assert quota.end_of(unit, BERLIN, utc(now)).timestamp() == utc(end).timestamp()


def test_a_midnight_that_the_clocks_skip():
    # In Havana the clocks go from 00:00 to 01:00 on the second Sunday of March, since 2013.
    havana = ZoneInfo("America/Havana")
    for now, end in (("2026-03-07T12:00:00", "2026-03-08T05:00:00"), ("2026-03-08T12:00:00", "2026-03-09T04:00:00")):
        assert quota.end_of("day", havana, utc(now)).timestamp() == utc(end).timestamp()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland"])
@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_no_window_is_longer_than_the_period_less_an_hour(unit, zone):
    zone, now = ZoneInfo(zone), utc("2026-01-01T00:00:00")
    longest = timedelta(hours=int(quota.PERIODS[unit].removesuffix("h")) - 1).total_seconds()
    while now.year < 2030:
        end = quota.end_of(unit, zone, now).astimezone(timezone.utc)
        assert 0 < (end - now).total_seconds() <= longest or now == utc("2026-01-01T00:00:00")
        now = end


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_all_callers_of_a_day_share_a_window(client, socket, unit, monkeypatch):
    class Clock(datetime):
        offset = timedelta()

        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + cls.offset

    with Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE) as limits:
        limit = quota.Quota(limits, unit, 10, "Europe/Berlin")
        monkeypatch.setattr(quota, "datetime", Clock)
        now = datetime.fromtimestamp(server_s(client), timezone.utc)
        key = f"quota:{unit}:a"
        decision = limit.take("a", 4)
        assert (decision.granted, decision.limit, decision.remaining) == (4, 10, 6)
        end = inspect(client, key)["window_end_ms"]
        # A midnight may pass in between.
        ends = {1000 * quota.end_of(unit, BERLIN, moment).timestamp() for moment in (now, now + timedelta(minutes=1))}
        assert end in ends
        # Another caller's clock is fast or slow.
        Clock.offset = timedelta(days=1)
        assert limit.take("a").remaining == 5
        Clock.offset = timedelta(days=-32)
        assert limit.take("a").remaining == 4
        assert inspect(client, key)["window_end_ms"] == end
        assert not limit.take("a", 5)
