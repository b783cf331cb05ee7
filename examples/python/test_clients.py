"""Tests what docs/clients.md says about clients that wait, and about clients in a cluster."""

import asyncio
import concurrent.futures
import contextlib
import threading

import glide_sync
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from conftest import SHARES, eventually, running_cluster, running_server

# Longer than each client waits by default, and longer than the tests take.
LONG_S = 120


class Line:
    """A key whose units are all taken for an hour. A call with BLOCK waits until `move` deletes the key."""

    CALL = ("RL.FIXED", "line", 1, "1h")

    def __init__(self, socket):
        self.admin = redis.Redis(unix_socket_path=socket, decode_responses=True)
        assert self.admin.execute_command(*self.CALL)[0] == 1
        self.answers = []
        self.threads = []

    def waiting(self):
        """The names of the waiting clients, each with the id of its connection."""
        return {client["name"]: client["id"] for client in self.admin.client_list() if "b" in client["flags"]}

    def join(self, name, call):
        """Starts a thread that waits by this call, and adds the result to `answers`."""

        def wait():
            try:
                granted = call(*self.CALL, "BLOCK", "2h")[0]
            except Exception as error:
                granted = type(error).__name__
            self.answers.append((name, granted))

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        eventually(lambda: name in self.waiting())

    def move(self):
        """Frees one unit, and returns the answer of the client that got it."""
        before = len(self.answers)
        self.admin.delete("line")
        eventually(lambda: len(self.answers) > before)
        assert len(self.answers) == before + 1 and self.used() == 1
        return self.answers[-1]

    def used(self):
        facts = self.admin.execute_command("RL.INSPECT", "line")
        facts = facts if isinstance(facts, dict) else dict(zip(facts[::2], facts[1::2]))
        return facts["used"]


@pytest.fixture
def line():
    # A separate server: when it stops, each thread that still waits ends too, also if the test fails.
    with running_server() as (process, socket):
        line = Line(socket)
        try:
            yield line, socket
        finally:
            line.admin.config_set("requirepass", "no client may reconnect")
            line.admin.client_kill_filter(_type="normal", skipme=True)
            for thread in line.threads:
                thread.join()


def in_threads(client):
    return client.execute_command


def in_asyncio(make):
    def call(*command):
        async def main():
            client = make()
            try:
                return await client.execute_command(*command)
            finally:
                await client.aclose()

        return asyncio.run(main())

    return call


def test_redis_py_waits_five_seconds_and_then_goes_to_the_end_of_the_queue(line):
    line, socket = line
    options = {"unix_socket_path": socket}
    patient = {**options, "socket_timeout": LONG_S, "retry": None}
    # With default settings, in threads and with asyncio; and with a time-out that is longer than the wait.
    line.join("hurried", in_threads(redis.Redis(**options, client_name="hurried")))
    line.join("hurried-too", in_asyncio(lambda: redis.asyncio.Redis(**options, client_name="hurried-too")))
    line.join("gives-up", in_threads(redis.Redis(**options, client_name="gives-up", retry=None)))
    line.join("patient", in_threads(redis.Redis(**patient, client_name="patient")))
    line.join("patient-too", in_asyncio(lambda: redis.asyncio.Redis(**patient, client_name="patient-too")))
    line.join("valkey-py", in_threads(valkey.Valkey(**options, client_name="valkey-py")))
    line.join("valkey-py-too", in_asyncio(lambda: valkey.asyncio.Valkey(**patient, client_name="valkey-py-too")))
    first = line.waiting()
    # Both have new connections: they left the queue, and called again.
    came_back = lambda now: all(now.get(name, first[name]) != first[name] for name in ("hurried", "hurried-too"))
    eventually(lambda: came_back(line.waiting()))
    eventually(lambda: line.answers == [("gives-up", "TimeoutError")])
    order = [line.move() for _ in range(6)]
    assert order[:4] == [(name, 1) for name in ("patient", "patient-too", "valkey-py", "valkey-py-too")]
    assert {name for name, granted in order[4:] if granted == 1} == {"hurried", "hurried-too"}


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as cluster, contextlib.ExitStack() as stack:
        yield [stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in cluster.ports]


def port(node):
    return node.connection_pool.connection_kwargs["port"]


def moved(cluster):
    """The number of calls that the nodes have redirected."""
    return sum(node.info("errorstats").get("errorstat_MOVED", {}).get("count", 0) for node in cluster)


KEYS = [f"user:{n}" for n in range(60)]
# A call of each command, for a key.
CALLS = {
    "RL.GCRA": lambda key: ("RL.GCRA", key, "10", "60"),
    "RL.INSPECT": lambda key: ("RL.INSPECT", key),
    "RL.PEEK": lambda key: ("RL.PEEK", "GCRA", key, "10", "60"),
    "RL.ALL": lambda key: ("RL.ALL", "2", f"{{{key}}}:a", f"{{{key}}}:b", "GCRA", "10", "60", "FIXED", "100", "1d"),
}


def sent_elsewhere(cluster, command, execute):
    before = moved(cluster)
    for key in KEYS:
        execute(key, *CALLS[command](key))
    return moved(cluster) - before


@pytest.mark.parametrize("command", CALLS)
def test_clients_that_ask_the_server_where_the_keys_are(cluster, command):
    host = {"host": "127.0.0.1", "port": port(cluster[0])}
    for client in (redis.RedisCluster(**host), valkey.ValkeyCluster(**host)):
        with client:
            assert sent_elsewhere(cluster, command, lambda _, *call: client.execute_command(*call)) == 0

    async def main():
        for client in (redis.asyncio.RedisCluster(**host), valkey.asyncio.ValkeyCluster(**host)):
            async with client:
                before = moved(cluster)
                await asyncio.gather(*(client.execute_command(*CALLS[command](key)) for key in KEYS))
                assert moved(cluster) == before

    asyncio.run(main())


@contextlib.contextmanager
def glide(cluster, **options):
    address = glide_sync.NodeAddress("127.0.0.1", port(cluster[0]))
    client = glide_sync.GlideClusterClient.create(glide_sync.GlideClusterClientConfiguration([address], **options))
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("command", CALLS)
def test_glide_takes_the_first_argument_for_the_key_unless_it_is_given_a_route(cluster, command):
    with glide(cluster, request_timeout=5000) as client:
        finds_it = command in ("RL.GCRA", "RL.INSPECT")
        elsewhere = sent_elsewhere(cluster, command, lambda _, *call: client.custom_command([*call]))
        assert elsewhere == 0 if finds_it else elsewhere > len(KEYS) / 3

        def routed(key, *call):
            tag = f"{{{key}}}" if command == "RL.ALL" else key
            client.custom_command([*call], glide_sync.SlotKeyRoute(glide_sync.SlotType.PRIMARY, tag))

        assert sent_elsewhere(cluster, command, routed) == 0


@pytest.fixture
def waiters(cluster):
    """A call that waits, the node that has its key, and a function that counts the waiters there."""
    for node in cluster:
        node.flushall()
    slot = cluster[0].cluster("KEYSLOT", "line")
    node = next(node for node, (first, last) in zip(cluster, SHARES) if first <= slot <= last)
    assert node.execute_command("RL.FIXED", "line", 1, "1h")[0] == 1
    return ["RL.FIXED", "line", "1", "1h", "BLOCK", "2h"], node, lambda: node.info("clients")["blocked_clients"]


def granted(node):
    return node.info("rl")["rl_fixed_granted"]


@contextlib.contextmanager
def in_a_thread(call):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def test_a_wait_in_a_cluster_is_granted_once(cluster, waiters):
    call, node, waiting = waiters
    host = {"host": "127.0.0.1", "port": port(cluster[0])}

    def check(wait):
        with in_a_thread(wait) as reply:
            before = granted(node)
            eventually(lambda: waiting() == 1)
            node.delete("line")
            assert reply.result()[0] == 1 and granted(node) == before + 1

    with redis.RedisCluster(**host, socket_timeout=LONG_S) as client:
        check(lambda: client.execute_command(*call))
    with glide(cluster, request_timeout=LONG_S * 1000) as client:
        check(lambda: client.custom_command(call))


@pytest.mark.parametrize("end", ["close", "unblock", "neither"])
def test_a_wait_that_glide_has_given_up_goes_on_until_it_is_ended(cluster, waiters, end):
    call, node, waiting = waiters
    before = granted(node)
    with glide(cluster) as client:
        with pytest.raises(glide_sync.TimeoutError):
            client.custom_command(call)
        assert waiting() == 1
        with pytest.raises(glide_sync.TimeoutError):
            client.get("line")  # This command is queued behind the wait, on the same connection.
        if end == "close":
            client.close()
        elif end == "unblock":
            [waiter] = [each for each in node.client_list() if "b" in each["flags"]]
            node.client_unblock(waiter["id"])
        else:
            node.delete("line")
        eventually(lambda: waiting() == 0)
        # A granted waiter is charged, although no program reads the reply.
        assert granted(node) == before + (end == "neither")
