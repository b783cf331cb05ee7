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
    assert count >= 1
    # On a busy machine a reply may take longer.
    text = text.replace("Limits(redis.Redis(", "Limits(patience=20, client=redis.Redis(").replace("Limits(client", "Limits(client, patience=20")
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "-W", "error", "-B", tmp_path / "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", programs())
def test_program(program, socket, tmp_path):
    output = run(program, socket, tmp_path)
    assert output or "print(" not in program


def test_what_the_programs_do(socket, tmp_path):
    take, _, protect, charge, hold, several = [parameter.values[0] for parameter in programs()][:6]
    client = redis.Redis(unix_socket_path=socket)
    output = run(take, socket, tmp_path)
    assert output.startswith("go on, 4 are left\n{'RateLimit-Policy': '\"api\";q=10;w=60'") and inspect(client, "api:user:42")
    output = run(protect, socket, tmp_path)
    assert output.startswith("the data of 42 the data of 42 called\nretry after 3") and inspect(client, "export:42")["used"] == 2
    assert run(charge, socket, tmp_path) == "59550\n"
    before = client.info("rl")["rl_lease_granted"]
    run(hold, socket, tmp_path)
    assert client.info("rl")["rl_lease_granted"] == before + 1 and inspect(client, "jobs:reports") is None
    assert run(several, socket, tmp_path).startswith("True [4, 9999] {")
    client.close()
