"""Runs each program of the README as printed. Only the address of the server is replaced."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import redis

from conftest import inspect

README = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()
PROGRAMS = re.findall(r"^## (.+?)$|```python\n(.*?)```", README, re.DOTALL | re.MULTILINE)


def programs():
    title, found = "", []
    for heading, program in PROGRAMS:
        title = heading or title
        if program:
            found.append(pytest.param(program, id=f"{title} {len(found)}"))
    return found


def run(program, socket, tmp_path):
    text, count = re.subn(r"(redis\.(asyncio\.)?Redis)\(", rf'\1(unix_socket_path="{socket}", ', program)
    text, more = re.subn("redis-rl://localhost:6379", f"redis-rl+unix://{socket}", text)
    assert count + more >= 1
    # On a busy machine a reply may take longer.
    text = text.replace("Limits(redis.Redis(", "Limits(patience=20, client=redis.Redis(").replace(
        "Limits(client", "Limits(client, patience=20"
    )
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "-W", "error", "-B", tmp_path / "program.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", programs())
def test_program(program, socket, tmp_path):
    output = run(program, socket, tmp_path)
    assert output or "print(" not in program


ASK_FASTAPI = """
import asyncio
import httpx


async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as web:
        answers = [await web.get("/export", headers={"x-user": "ada"}) for _ in range(3)]
        # Without the header, the address is the key.
        answers += [await web.get("/export", headers=each) for each in ({}, {"x-user": ""}, {})]
    first = answers[0].headers["X-RateLimit-Limit"], (await limits.limit("api", Gcra("100/m", burst=20)).peek("x")).limit
    print(*(answer.status_code for answer in answers), *first)
    await limits.aclose()


asyncio.run(main())
"""
ASK_FLASK = """
web = app.test_client()
answers = [web.get("/export", headers={"x-user": "eve"}) for _ in range(3)]
answers += [web.get("/export", headers=each) for each in ({}, {"x-user": ""}, {})]
print(*(answer.status_code for answer in answers), answers[0].headers["X-RateLimit-Limit"])
"""


def test_what_the_programs_do(socket, tmp_path):
    take, _, protect, charge, hold, several, admit, local, fastapi, flask, storage = [each.values[0] for each in programs()]
    client = redis.Redis(unix_socket_path=socket)
    output = run(take, socket, tmp_path)
    assert output.startswith("go on, 4 are left\n{'RateLimit-Policy': '\"api\";q=10;w=60'") and inspect(client, "api:user:42")
    output = run(protect, socket, tmp_path)
    assert (
        output.startswith("the data of 42 the data of 42 called\nretry after 3") and inspect(client, "export:42")["used"] == 2
    )
    assert run(charge, socket, tmp_path) == "59550\n"
    before = client.info("rl")["rl_lease_granted"]
    run(hold, socket, tmp_path)
    assert client.info("rl")["rl_lease_granted"] == before + 1 and inspect(client, "jobs:reports") is None
    assert run(several, socket, tmp_path).startswith("True [4, 9999] {")
    assert run(admit, socket, tmp_path) == "59 19550\n" and inspect(client, "{llm}:running:acme") is None
    assert run(local, socket, tmp_path) == f"{[1] * 10 + [0, 0]} True\n250\n"
    assert inspect(client, "events:site")["used"] == 250
    fastapi_app = run(fastapi + ASK_FASTAPI, socket, tmp_path)
    assert fastapi_app == "200 200 429 200 200 429 2 20\n"
    client.delete("export:127.0.0.1")
    assert run(flask + ASK_FLASK, socket, tmp_path) == "200 200 429 200 200 429 2\n"
    assert run(storage, socket, tmp_path) == "True\n"
    client.close()


def test_the_program_of_the_module_s_own_readme(socket, tmp_path):
    text = (pathlib.Path(__file__).resolve().parents[3] / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert re.fullmatch(r"1 4 \{'RateLimit-Policy': '\"api\";q=10;w=60'.*\}\nour turn\n", run(program, socket, tmp_path))
    assert "`pip install ./clients/python`" in text
