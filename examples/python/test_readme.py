"""Runs the programs in the README of the recipes and in docs/clients.md. Only the address of the server is replaced."""

import pathlib
import re
import runpy

import pytest
import ratelimit

ROOT = pathlib.Path(__file__).resolve().parents[2]


def programs(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


DECORATOR, STORAGE = programs("examples/README.md")
[WAIT] = programs("docs/clients.md")


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


def test_the_wait(tmp_path, socket):
    names = run(tmp_path, WAIT, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    assert (names["granted"], names["limit"], names["remaining"]) == (1, 5, 4)
    assert names["client"].get_connection_kwargs()["socket_timeout"] > 30
    names["client"].close()
