"""Servers with the module for the tests of this package and of examples/, in private folders. They stop at the end of the test,
also if it fails."""

import contextlib
import os
import pathlib
import random
import select
import shutil
import socket as socket_module
import socketserver
import subprocess
import tempfile
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULE = pathlib.Path(os.environ.get("REDIS_RL_MODULE", ROOT / "target/release/libredis_rl.so")).resolve()
SERVER = os.environ.get("REDIS_RL_SERVER", "redis-server")
# The time that a reply may take on a busy machine.
PATIENCE = 20
ONCE = Retry(NoBackoff(), 0)


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.01)
    return result


def is_up(**address):
    try:
        with redis.Redis(**address, retry=ONCE) as client:
            return client.ping()
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False


def free_ports(count):
    """Ports of TCP that are free. As long as this process lives, it holds the same ports of UDP, so that no other test gets them
    before the server has started. They are below those that the system gives to outgoing connections."""
    ports = []
    while len(ports) < count:
        port = random.randrange(11_000, 31_000)
        with socket_module.socket() as listener, socket_module.socket(type=socket_module.SOCK_DGRAM) as held:
            try:
                held.bind(("127.0.0.1", port))
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            held.detach()
        ports.append(port)
    return ports


@contextlib.contextmanager
def running(home, *options, module=MODULE, sentinel=None, up=None, server=SERVER):
    """Runs a server, and yields its process. `sentinel` is the text of the configuration of a Sentinel."""
    assert module is None or module.exists(), f"{module} is missing: run `make build`"
    home = pathlib.Path(home)
    home.mkdir(exist_ok=True)
    command = [str(server), *map(str, options), "--dir", str(home), "--save", ""]
    command += ["--loadmodule", str(module)] if module else []
    if sentinel:
        (home / "sentinel.conf").write_text(sentinel)
        command = [str(server), str(home / "sentinel.conf"), "--sentinel"]
    with open(home / "log", "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually(lambda: process.poll() is not None or is_up(**up))
            assert process.poll() is None, f"the server did not start:\n{(home / 'log').read_text()}"
            yield process
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp(prefix="redis-rl-")
    try:
        yield pathlib.Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running_server(*options, module=MODULE):
    """Yields the process and the socket of one server."""
    with folder() as home:
        socket = f"{home}/s"
        with running(
            home, "--port", 0, "--unixsocket", socket, *options, module=module, up={"unix_socket_path": socket}
        ) as process:
            yield process, socket


class Cluster:
    def __init__(self, ports, processes, login):
        self.ports = ports
        self.processes = processes
        self.login = login

    def node(self, port):
        return redis.Redis(port=port, decode_responses=True, retry=ONCE, **self.login)


SHARES = [(0, 5460), (5461, 10922), (10923, 16383)]


@contextlib.contextmanager
def running_cluster(replicas=0, options=(), login=None, ports=None):
    """Three primaries on loopback, each with this many replicas. `ports` lists the primaries first. `login` is what clients
    need besides the port, and `options` are more options of each server."""
    with folder() as home, contextlib.ExitStack() as stack:
        count = 3 * (1 + replicas)
        ports = ports or free_ports(2 * count)
        processes = {}
        more = list(map(str, options))
        named = "--tls-port" if "--tls-cert-file" in more else "--port"
        for port, bus in zip(ports[:count], ports[count:]):
            options = [named, port, "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", bus]
            options += ["--cluster-node-timeout", 2000, "--repl-diskless-sync-delay", 0, *more]
            up = {"port": port, **(login or {})}
            processes[port] = stack.enter_context(running(home / str(port), *options, up=up))
        cluster = Cluster(ports[:count], processes, login or {})
        nodes = [stack.enter_context(cluster.node(port)) for port in cluster.ports]
        for node, share in zip(nodes, SHARES):
            node.execute_command("CLUSTER ADDSLOTSRANGE", *share)
        for node in nodes[1:]:
            node.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], ports[count])

        def complete(node):
            facts = node.cluster("info")
            return facts.get("cluster_slots_ok") == "16384" and facts["cluster_known_nodes"] == str(count)

        eventually(lambda: all(complete(node) for node in nodes))
        for index, node in enumerate(nodes[3:]):
            primary = nodes[index % 3].execute_command("CLUSTER MYID")
            eventually(lambda: _does(node.execute_command, "CLUSTER REPLICATE", primary))
            eventually(lambda: node.info("replication").get("master_link_status") == "up")
        ready = lambda node: (
            len(node.execute_command("CLUSTER SLOTS")[0]) == 3 + replicas
            and all(len(row) == 3 + replicas for row in node.execute_command("CLUSTER SLOTS"))
        )
        eventually(lambda: all(node.cluster("info")["cluster_state"] == "ok" and ready(node) for node in nodes))
        yield cluster


def _does(function, *arguments):
    try:
        return function(*arguments)
    except redis.ResponseError:
        return False


class Watched:
    def __init__(self, ports, sentinel_port):
        self.ports = ports
        self.sentinel_port = sentinel_port

    def failover(self):
        """Makes the replica the primary, and returns when Sentinel names it."""
        with redis.Redis(port=self.sentinel_port, decode_responses=True) as sentinel:
            before = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "limits")
            eventually(lambda: _does(sentinel.execute_command, "SENTINEL FAILOVER", "limits"))
            eventually(lambda: sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "limits") != before)


@contextlib.contextmanager
def running_sentinel(name="limits", password=None, ports=None):
    """A primary, a replica, and one Sentinel that watches them under this name. All three have this password."""
    login = {"password": password} if password else {}
    with folder() as home, contextlib.ExitStack() as stack:
        ports = ports or free_ports(3)
        options = ["--bind", "127.0.0.1", "--repl-diskless-sync-delay", 0]
        options += ["--requirepass", password, "--masterauth", password] if password else []
        stack.enter_context(running(home / "a", "--port", ports[0], *options, up={"port": ports[0]}))
        more = ["--replicaof", f"127.0.0.1 {ports[0]}"]
        stack.enter_context(running(home / "b", "--port", ports[1], *options, *more, up={"port": ports[1]}))
        text = (
            f"port {ports[2]}\nbind 127.0.0.1\ndir {home}/s\nsentinel monitor {name} 127.0.0.1 {ports[0]} 1\n"
            f"sentinel down-after-milliseconds {name} 60000\nsentinel failover-timeout {name} 60000\n"
        )
        text += f"requirepass {password}\nsentinel auth-pass {name} {password}\n" if password else ""
        with redis.Redis(port=ports[1], decode_responses=True, **login) as replica:
            eventually(lambda: replica.info("replication").get("master_link_status") == "up")
        stack.enter_context(running(home / "s", sentinel=text, up={"port": ports[2]}))
        with redis.Redis(port=ports[2], decode_responses=True, **login) as sentinel:

            def knows_replica():
                rows = sentinel.execute_command("SENTINEL REPLICAS", name)
                return len(rows) == 1 and "slave" in str(rows) and "disconnected" not in str(rows)

            eventually(knows_replica)
        yield Watched(ports[:2], ports[2])


class Proxy(socketserver.ThreadingUnixStreamServer):
    """Stands between clients and a server, and loses what a test says. Its `server_address` is a socket for clients."""

    daemon_threads = False

    def __init__(self, address, server):
        super().__init__(address, Forwarder)
        self.server_socket = server
        self.closing = False
        self.to_lose = []
        self.lost = []
        self.seen = []
        self.delayed = self.delayed_reply = None
        self.go_on = threading.Event()

    def delay(self, command):
        """Passes on what contains this command only after `go_on` is set, also if its client has closed the connection."""
        self.delayed = command.encode()

    def delay_reply(self, command):
        """The same with the reply."""
        self.delayed_reply = command.encode()

    def wait(self):
        while not self.closing and not self.go_on.wait(0.02):
            pass

    def lose(self, what, command, times=1):
        """Closes the connection on which this command comes next: before it reaches the server ("request"), or when the
        server has answered it, without passing on the answer ("reply")."""
        self.to_lose += [(what, command)] * times


class Forwarder(socketserver.BaseRequestHandler):
    def handle(self):
        proxy = self.server
        with socket_module.socket(socket_module.AF_UNIX) as server:
            server.connect(proxy.server_socket)
            losing, late = None, False
            while not proxy.closing:
                for source in select.select([self.request, server], [], [], 0.02)[0]:
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        if source is server:
                            if losing:
                                proxy.lost.append(losing)
                                return
                            if late:
                                proxy.wait()
                            self.request.sendall(data)
                            continue
                        proxy.seen.append(data)
                        late = proxy.delayed_reply is not None and proxy.delayed_reply in data
                        losing = next((each for each in proxy.to_lose if each[1].encode() in data), None)
                        if losing:
                            proxy.to_lose.remove(losing)
                            if losing[0] == "request":
                                proxy.lost.append(losing)
                                return
                        if proxy.delayed is not None and proxy.delayed in data:
                            proxy.wait()
                        server.sendall(data)
                    except ConnectionError:
                        return


def certificate(home):
    """Makes the files `cert` and `key` for servers on loopback, and returns what clients need to connect to them."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", f"{home}/key", "-out", f"{home}/cert"]
    subprocess.run(command, check=True, capture_output=True)
    return {"ssl": True, "ssl_ca_certs": f"{home}/cert", "ssl_certfile": f"{home}/cert", "ssl_keyfile": f"{home}/key"}


def tls_options(home):
    """The options of a server with the files of `certificate`."""
    options = ["--tls-cert-file", f"{home}/cert", "--tls-key-file", f"{home}/key", "--tls-ca-cert-file", f"{home}/cert"]
    return [*options, "--port", "0"]


def inspect(client, key):
    """What RL.INSPECT says, by name; None for a missing key."""
    facts = client.execute_command("RL.INSPECT", key)
    return None if facts is None else named(facts)


def named(facts):
    """The reply to RL.INSPECT by name."""
    facts = facts if isinstance(facts, dict) else dict(zip(facts[::2], facts[1::2]))
    return {name.decode() if isinstance(name, bytes) else name: fact for name, fact in facts.items()}


@pytest.fixture(scope="session")
def server():
    with running_server() as (_, socket):
        yield socket


@pytest.fixture
def socket(server):
    """The socket of a server that holds no key."""
    with redis.Redis(unix_socket_path=server) as client:
        client.flushall()
    return server


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


@pytest.fixture(scope="session")
def cluster():
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def dead_socket():
    """The socket of a server that has been killed."""
    with running_server() as (process, socket):
        process.kill()
        process.wait()
        yield socket


@pytest.fixture
def proxy(socket, tmp_path):
    """A proxy to the server of the fixture `socket`."""
    with Proxy(str(tmp_path / "p"), socket) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing = True
            proxy.shutdown()
            thread.join()
