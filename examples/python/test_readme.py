"""Runs the programs in the README of the recipes, in docs/clients.md and in docs/choosing.md. Only the address of the server is replaced."""

import asyncio
import pathlib
import re
import runpy
import types

import leases
import pytest
import ratelimit
import redis

from conftest import inspect

ROOT = pathlib.Path(__file__).resolve().parents[2]


def programs(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


DECORATOR, STORAGE, BUDGET, SEMAPHORE, JOBS, GATEWAY, CALENDAR, CENTRAL = programs("examples/README.md")
[WAIT] = programs("docs/clients.md")
[UNTIL] = programs("docs/choosing.md")


def run(folder, program, here, there):
    assert here in program
    file = folder / "program.py"
    file.write_text(program.replace(here, there))
    return runpy.run_path(file)


def test_the_decorator(tmp_path, socket):
    names = run(tmp_path, DECORATOR, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    for _ in range(10):
        names["show"](user_id=42)
    with pytest.raises(ratelimit.RateLimited) as denied:
        names["show"](user_id=42)
    assert 0 < denied.value.retry_after <= 6
    names["show"](user_id=43)
    names["call"]()


def test_the_storage(tmp_path, socket):
    app = run(tmp_path, STORAGE, "redis-rl://localhost:6379", f"redis-rl+unix://{socket}")["app"]
    app.route("/")(lambda: "hello")
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(11)] == [200] * 10 + [429]


def test_the_budget(tmp_path, socket):
    names = run(tmp_path, BUDGET, "redis.asyncio.Redis(", f"redis.asyncio.Redis(unix_socket_path={socket!r}, ")
    client = redis.Redis(unix_socket_path=socket)

    class Model:
        async def complete(self, prompt, max_tokens):
            assert inspect(client, "llm:tokens")["used"] == len(prompt) // 3 + max_tokens
            return types.SimpleNamespace(usage=types.SimpleNamespace(total_tokens=70))

    async def main():
        assert (await names["complete"](Model(), "x" * 300)).usage.total_tokens == 70
        await names["budget"].client.aclose()

    asyncio.run(main())
    assert inspect(client, "llm:tokens")["used"] == 70
    assert inspect(client, "llm:requests")["used"] == 1


def test_the_semaphore(tmp_path, socket):
    names = run(tmp_path, SEMAPHORE, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    client = redis.Redis(unix_socket_path=socket)
    held = []
    names["convert"]([1, 2], lambda batch: held.append(inspect(client, "converters")["held"]))
    assert held == [1, 1] and inspect(client, "converters") is None
    with pytest.raises(leases.LeaseLost):
        names["convert"]([1, 2], lambda batch: client.delete("converters"))


def test_the_jobs(tmp_path, socket):
    client = redis.Redis(unix_socket_path=socket)
    granted = client.info("rl")["rl_lease_granted"]
    run(tmp_path, JOBS, "redis.asyncio.Redis(", f"redis.asyncio.Redis(unix_socket_path={socket!r}, ")
    # Each of the three leases is granted and renewed.
    assert client.info("rl")["rl_lease_granted"] == granted + 6
    assert inspect(client, "reports") is None


def test_the_gateway(tmp_path, socket):
    names = run(tmp_path, GATEWAY, "redis.asyncio.Redis(", f"redis.asyncio.Redis(unix_socket_path={socket!r}, ")
    client = redis.Redis(unix_socket_path=socket)

    class Model:
        async def complete(self, prompt, max_tokens):
            estimate = len(prompt) // 3 + max_tokens
            assert inspect(client, "{gateway}:tokens")["used"] == inspect(client, "{gateway}:ada:tokens")["used"] == estimate
            assert inspect(client, "{gateway}:ada:running")["held"] == 1
            return types.SimpleNamespace(usage=types.SimpleNamespace(total_tokens=70))

        async def stream(self, prompt, max_tokens):
            for text in ("one", "two", "three"):
                yield types.SimpleNamespace(text=text, tokens=2)

    async def main():
        # On a busy machine a reply may take longer.
        names["gateway"].patience = 20
        assert (await names["complete"](Model(), "ada", "x" * 300)).usage.total_tokens == 70
        sent = []

        async def send(text):
            sent.append(text)
            if text == "two":
                raise ConnectionError("the client has disconnected")

        with pytest.raises(ConnectionError):
            await names["stream"](Model(), "ada", "x" * 300, send)
        assert sent == ["one", "two"]
        await names["gateway"].aclose()
        await names["gateway"].client.aclose()

    asyncio.run(main())
    for key, used in (("{gateway}:tokens", 174), ("{gateway}:ada:tokens", 174), ("{gateway}:ada:requests", 2)):
        assert inspect(client, key)["used"] == used
    assert inspect(client, "{gateway}:ada:running") is None


def test_the_calendar(tmp_path, socket):
    names = run(tmp_path, CALENDAR, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    assert (names["granted"], names["remaining"]) == (1, 9_999)
    names["client"].close()


def test_the_ends_of_the_day_and_the_month(tmp_path, socket):
    names = run(tmp_path, UNTIL, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}")
    day, month = (1000 * names["midnight"](names[name]) for name in ("tomorrow", "next_month"))
    for key, end in (("quota:42", day), ("{quota:42}:day", day), ("{quota:42}:month", month)):
        facts = inspect(names["client"], key)
        assert (facts["window_end_ms"], facts["used"]) == (end, 1)
    names["client"].close()


def test_the_central_limits(tmp_path, socket):
    # On a busy machine a reply may take longer.
    program = CENTRAL.replace("socket_timeout=0.2", "socket_timeout=20")
    names = run(tmp_path, program, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    assert (names["granted"], names["limit"], names["remaining"]) == (1, 20, 19)
    names["client"].hset("limits", "api", "GCRA 5 1m BURST 20")
    names["limits"].due = 0
    assert names["limits"].take("api", "user:42")[:3] == [1, 20, 18]
    assert inspect(names["client"], "limit:api:gcra:user:42")["limit"] == 5
    names["client"].close()


DENIALS = [("GCRA 0 1", r"All calls are refused now\.\n"), ("GCRA 1 1h", r"Try again in 3\d{3}\.?\d* seconds\.\n")]


@pytest.mark.parametrize("policy, said", DENIALS)
def test_the_central_limits_say_when_to_try_again(tmp_path, socket, capsys, policy, said):
    with redis.Redis(unix_socket_path=socket) as admin:
        admin.hset("limits", "api", policy)
        admin.execute_command("RL.GCRA", "limit:api:gcra:user:42", 1, "1h")
    program = CENTRAL.replace("socket_timeout=0.2", "socket_timeout=20")
    names = run(tmp_path, program, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    names["client"].close()
    assert re.fullmatch(said, capsys.readouterr().out)


def test_the_wait(tmp_path, socket):
    names = run(tmp_path, WAIT, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    assert (names["granted"], names["limit"], names["remaining"]) == (1, 5, 4)
    assert names["client"].get_connection_kwargs()["socket_timeout"] > 30
    names["client"].close()
