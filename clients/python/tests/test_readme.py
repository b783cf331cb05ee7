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
    late = "timeout=20, connect_timeout=20"
    text = re.sub(r"(Async)?Limits\((?=redis|client)", lambda match: f"{match[0]}client=", text)
    text = re.sub(r"Limits\(client=", f"Limits({late}, client=", text)
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
    transport = httpx.ASGITransport(app, client=("2001:db8::7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
        answers = [await web.get("/export", headers={"cookie": "session=secret-of-ada"}) for _ in range(3)]
        # Nobody escapes by what he sends.
        answers += [await web.get("/export", headers={"x-user": str(n), "cookie": f"session={n}"}) for n in range(3)]
        health = await web.get("/health")
    shown = [answer.headers["RateLimit-Policy"].split(";w")[0] for answer in (answers[0], answers[3])]
    print(*(answer.status_code for answer in answers), *shown, "RateLimit" in health.headers)
    await limits.aclose()


asyncio.run(main())
"""
ASK_FLASK = """
web = app.test_client()
answers = [web.get("/export", headers={"x-user": str(n)}) for n in range(3)]
print(*(answer.status_code for answer in answers), answers[0].headers["X-RateLimit-Limit"], answers[2].text[:10])
"""


def test_what_the_programs_do(socket, tmp_path):
    take, _, around, stop, charge, hold, several, operator, process, fastapi, web, storage, down = [each.values[0] for each in programs()]
    client = redis.Redis(unix_socket_path=socket)
    output = run(take, socket, tmp_path)
    assert output.startswith("go on, 4 are left\n{'RateLimit-Policy': '\"api\";q=10;w=60'") and inspect(client, "api:user:42")
    output = run(around, socket, tmp_path)
    assert output.startswith("the data of 42 the data of 42 called\nretry after ")
    assert inspect(client, "export:user:42")["used"] == 2
    assert re.fullmatch(r"(30\.0|29\.\d+|2\d\.\d+)\nTrue\n", run(stop, socket, tmp_path))
    assert run(charge, socket, tmp_path) == "59550\n"
    before = client.info("rl")["rl_lease_granted"]
    assert run(hold, socket, tmp_path) == "step 0\nstep 1\nstep 2\n"
    assert client.info("rl")["rl_lease_granted"] == before + 1 and inspect(client, "jobs:reports") is None
    assert run(several, socket, tmp_path) == "59 19550\n" and inspect(client, "{llm}running:acme") is None
    assert run(operator, socket, tmp_path) == "10\n"
    client.execute_command("RL.POLICY", "policy:acme", "GCRA", 200, "1m")
    assert run(operator, socket, tmp_path) == "200\n"
    assert run(process, socket, tmp_path) == "['server', 'server', 'repeated']\n250\n"
    assert inspect(client, "events:site")["used"] == 250
    assert run(fastapi + ASK_FASTAPI, socket, tmp_path) == '200 200 429 200 200 429 "pro";q=100 "free";q=10 False\n'
    assert run(web + ASK_FLASK, socket, tmp_path) == "200 200 429 2 not before\n"
    assert run(storage, socket, tmp_path) == "True\n"
    assert run(down, socket, tmp_path) == "server 0\n"
    client.close()


def test_the_program_of_the_module_s_own_readme(socket, tmp_path):
    text = (pathlib.Path(__file__).resolve().parents[3] / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert re.fullmatch(r"1 4 \{'RateLimit-Policy': '\"api\";q=10;w=60'.*\}\nour turn\n", run(program, socket, tmp_path))
    assert "venv/bin/pip install ./clients/python\n" in text
