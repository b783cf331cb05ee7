"""The class Server of the wheel."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import redis_rl_server
from redis_rl_server import ReplyError, Server, ServerError

FOLDER = Path(__file__).parents[1]


def test_200_starts_20_at_a_time(private):
    def start(number):
        with Server(port=0 if number % 2 else None) as server, redis.Redis.from_url(server.url) as client:
            return client.execute_command("RL.GCRA", "key", 10, 60)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(start, range(200))) == [[1, 10, 9, 0, 6000]] * 200


def test_kill_9_of_a_program_whose_starting_thread_has_ended(private):
    program = """if True:
        import os, threading, time
        from redis_rl_server import Server
        server = Server()
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        print(server.url, flush=True)
        time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        with redis.Redis.from_url(process.stdout.readline().strip()) as client:
            assert client.ping()
        process.kill()


def test_a_forked_process_does_not_end_the_server(private):
    with Server() as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert server.call("PING") == "PONG"
        # A process that still has the pipe does not keep the server when it is stopped.
        child = os.fork()
        if child == 0:
            signal.pause()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_port_in_use(private, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"Port {port} is in use"):
            Server(port=port).start()


def test_a_port_that_another_program_takes_meanwhile(private, tmp_path, monkeypatch):
    """The launcher gets a random number from `od`: the first time here the number of a port in use, which begins at 20000."""
    for port in range(20000, 32000):
        try:
            taken = socket.create_server(("127.0.0.1", port))
            break
        except OSError:
            continue
    asked, od = tmp_path / "asked", tmp_path / "od"
    od.write_text(f'#!/bin/sh\n[ -e "{asked}" ] && exec {shutil.which("od")} "$@"\n: >"{asked}"\necho {port - 20000}\n')
    od.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with taken, Server() as server:
        assert asked.exists() and server.port != port and server.call("PING") == "PONG"


def test_a_system_without_glibc(private, monkeypatch):
    def confstr(_):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", confstr)
    with pytest.raises(ServerError, match="no glibc .*--server PATH"):
        Server().start()


def test_arguments_and_errors(private):
    with Server("--maxmemory", "20mb", "--rl.max-waiters", "7") as server:
        assert server.call("CONFIG", "GET", "rl.max-waiters") == ["rl.max-waiters", "7"]
        with pytest.raises(ReplyError, match="WRONGTYPE"):
            server.call("SET", "text", "x")
            server.call("RL.GCRA", "text", 1, 1)
        with pytest.raises(ServerError, match="started already"):
            server.start()
    with pytest.raises(ServerError, match="no-such-option"):
        Server("--no-such-option", "1").start()


def test_a_long_tmpdir(private, monkeypatch):
    folder = private / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with Server(port=None) as server:
        assert server.url.startswith("unix:///tmp/redis-rl.") and server.call("PING") == "PONG"
        # Only its user can reach the socket.
        assert Path(server.folder).stat().st_mode & 0o777 == 0o700
    assert not Path(server.folder).exists()
    folder.rmdir()


def test_the_server_ends_by_itself(private):
    with Server() as server:
        waiting = threading.Thread(target=server.wait)
        waiting.start()
        with pytest.raises(OSError):
            server.call("SHUTDOWN")
        waiting.join()


@pytest.mark.parametrize("number", [1, 2])
def test_the_fixture_is_flushed(rl_server, number):
    assert rl_server.call("RL.FIXED", "key", 10, 60) == [1, 10, 9, 0, 60000]
    assert rl_server.call("RL.TOP") == []
    rl_server.call("RL.FIXED", "key", 0, 60)
    assert len(rl_server.call("RL.TOP")) == 1


def test_the_code_of_the_readme(private):
    code = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.S)
    assert len(code) == 2 and redis_rl_server.__file__
    names = {}
    for block in code:
        exec(block, names)
    with Server() as server:
        names["test_login"](server)
