"""A server with the module, on a socket in a folder of its own; gone with the test."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time

import pytest
import redis

BUILT = pathlib.Path(__file__).resolve().parents[2] / "target/release/libredis_rl.so"


@contextlib.contextmanager
def running_server():
    module = pathlib.Path(os.environ.get("REDIS_RL_MODULE", BUILT)).resolve()
    assert module.exists(), f"{module} is missing: run `make build`"
    with tempfile.TemporaryDirectory(prefix="redis-rl-") as folder:
        socket = f"{folder}/server.sock"
        options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--loadmodule", str(module)]
        with open(f"{folder}/log", "w+") as log:
            process = subprocess.Popen([os.environ.get("REDIS_RL_SERVER", "redis-server"), *options], stdout=log)
            try:
                eventually(lambda: process.poll() is not None or is_up(socket))
                assert process.poll() is None, f"the server did not start:\n{pathlib.Path(log.name).read_text()}"
                yield process, socket
            finally:
                process.kill()
                process.wait()


def is_up(socket):
    try:
        return redis.Redis(unix_socket_path=socket, retry=None).ping()
    except redis.RedisError:
        return False


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def server():
    with running_server() as (_, socket):
        yield socket


@pytest.fixture
def socket(server):
    """The socket of a server that holds no key."""
    redis.Redis(unix_socket_path=server).flushall()
    return server


@pytest.fixture
def dead_socket():
    """The socket of a server that has been killed."""
    with running_server() as (process, socket):
        process.kill()
        process.wait()
        yield socket
