"""Servers with the module, on a socket in a private folder. They stop at the end of the test."""

import contextlib
import os
import pathlib
import select
import socket as socket_module
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import redis

BUILT = pathlib.Path(__file__).resolve().parents[2] / "target/release/libredis_rl.so"


MODULE = pathlib.Path(os.environ.get("REDIS_RL_MODULE", BUILT)).resolve()


@contextlib.contextmanager
def running_server(module=MODULE, port=0):
    """Yields the process and its socket. With `module=None` the server runs without the module. With a `port` it also listens
    there, on loopback."""
    assert module is None or module.exists(), f"{module} is missing: run `make build`"
    with tempfile.TemporaryDirectory(prefix="redis-rl-") as folder:
        socket = f"{folder}/server.sock"
        options = ["--port", str(port), "--bind", "127.0.0.1", "--unixsocket", socket, "--dir", folder, "--save", ""]
        options += ["--loadmodule", str(module)] if module else []
        with open(f"{folder}/log", "w+") as log:
            process = subprocess.Popen([os.environ.get("REDIS_RL_SERVER", "redis-server"), *options], stdout=log)
            try:
                eventually(lambda: process.poll() is not None or is_up(socket))
                assert process.poll() is None, f"the server did not start:\n{pathlib.Path(log.name).read_text()}"
                yield process, socket
            finally:
                process.kill()
                process.wait()


NODES = 3
# The slots of each node.
SHARES = [(0, 5460), (5461, 10922), (10923, 16383)]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket_module.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running_cluster():
    """Yields the ports of three primaries, on loopback."""
    assert MODULE.exists(), f"{MODULE} is missing: run `make build`"
    with tempfile.TemporaryDirectory(prefix="redis-rl-") as folder, contextlib.ExitStack() as stack:
        ports = free_ports(2 * NODES)
        for port, bus in zip(ports[:NODES], ports[NODES:]):
            home = pathlib.Path(folder, str(port))
            home.mkdir()
            options = ["--port", port, "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", bus]
            options += ["--dir", home, "--save", "", "--loadmodule", MODULE]
            log = stack.enter_context(open(home / "log", "w"))
            program = [os.environ.get("REDIS_RL_SERVER", "redis-server"), *map(str, options)]
            process = subprocess.Popen(program, stdout=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            eventually(lambda: process.poll() is not None or is_up(port=port))
            assert process.poll() is None, f"a node did not start:\n{(home / 'log').read_text()}"
        nodes = [stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in ports[:NODES]]
        for node, share in zip(nodes, SHARES):
            node.execute_command("CLUSTER ADDSLOTSRANGE", *share)
            node.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], ports[NODES])
        # Waits until each node knows all slots: a client that asked it earlier would miss some.
        knows_all = lambda node: node.cluster("info").get("cluster_slots_ok") == "16384"
        eventually(lambda: all(knows_all(node) and node.cluster("info")["cluster_state"] == "ok" for node in nodes))
        yield ports[:NODES]


def is_up(socket=None, port=None):
    try:
        return redis.Redis(unix_socket_path=socket, port=port, retry=None).ping()
    except redis.RedisError:
        return False


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.005)


class Proxy(socketserver.ThreadingUnixStreamServer):
    """Stands between clients and a server, and loses what a test says. Its `server_address` is a socket for clients."""

    daemon_threads = False

    def __init__(self, address, server):
        super().__init__(address, Forwarder)
        self.server_socket = server
        self.closing = False
        self.to_lose = []
        self.lost = []

    def lose(self, what, command):
        """Closes the connection on which this command comes next: before it reaches the server ("request"), or when the server
        has answered it, without passing on the answer ("reply")."""
        self.to_lose.append((what, command))


class Forwarder(socketserver.BaseRequestHandler):
    def handle(self):
        with socket_module.socket(socket_module.AF_UNIX) as server:
            server.connect(self.server.server_socket)
            losing = None
            while not self.server.closing:
                for source in select.select([self.request, server], [], [], 0.02)[0]:
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        if source is server:
                            if losing:
                                self.server.lost.append(losing)
                                return
                            self.request.sendall(data)
                            continue
                        losing = next((each for each in self.server.to_lose if each[1].encode() in data), None)
                        if losing:
                            self.server.to_lose.remove(losing)
                            if losing[0] == "request":
                                self.server.lost.append(losing)
                                return
                        server.sendall(data)
                    except ConnectionError:
                        return


@pytest.fixture
def proxy(socket, tmp_path):
    """A proxy to the server of the fixture `socket`."""
    with Proxy(str(tmp_path / "proxy.sock"), socket) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing = True
            proxy.shutdown()
            thread.join()


@contextlib.contextmanager
def killed_in_the_middle(program, *arguments):
    """Runs a program in a separate process until it prints that it is in the middle. Yields a function that kills it."""
    here = pathlib.Path(__file__).parent
    command = [sys.executable, "-B", "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "in the middle\n"

        def kill():
            process.kill()
            process.wait()

        yield kill
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def server_s(client):
    """The server's clock, in seconds."""
    seconds, micros = client.time()
    return seconds + micros / 1_000_000


def inspect(client, key):
    """What RL.INSPECT says, by name; None for a missing key."""
    facts = client.execute_command("RL.INSPECT", key)
    if facts is None:
        return None
    facts = facts if isinstance(facts, dict) else dict(zip(facts[::2], facts[1::2]))
    return {name.decode() if isinstance(name, bytes) else name: fact for name, fact in facts.items()}


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
