"""Changes limits under load, for processes that do not restart."""

import contextlib
import logging
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading

import pytest
import redis

from central_limits import CentralLimits, text_of
from conftest import PATIENCE, eventually, free_ports, inspect, running_server, server_s
from redis_rl import Unavailable

DEFAULTS = {"api": "GCRA 10 1m"}
OPERATIONS = pathlib.Path(__file__).resolve().parents[2] / "docs/operations.md"


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(socket, request):
    with redis.Redis(unix_socket_path=socket, retry=None, decode_responses=request.param) as client:
        yield client


@pytest.fixture
def limits(client):
    """Reads the hash at each call."""
    return CentralLimits(client, DEFAULTS, every=0, timeout=PATIENCE)


def row(decision):
    return decision.granted, decision.limit, decision.remaining


def refused(limits, policy):
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        limits.checked("api", policy)


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "central_limits" if record.levelno >= logging.ERROR]


def test_the_default_is_in_force_until_the_hash_names_a_policy(client, limits, caplog):
    assert row(limits["api"].take("user:42")) == (1, 10, 9)
    client.hset("limits", "api", "GCRA 20 1m")
    # The unit in use is carried over.
    assert row(limits["api"].take("user:42")) == (1, 20, 18)
    client.hset("limits", "api", "gcra  5 1m burst 7")
    assert row(limits["api"].take("user:42", 2)) == (2, 7, 3)
    assert row(CentralLimits(client, DEFAULTS, timeout=PATIENCE)["api"].take("user:42")) == (1, 7, 2)
    with pytest.raises(KeyError):
        limits["uploads"].take("user:42")
    client.hset("limits", "uploads", "FIXED 2 1d")
    assert row(limits["uploads"].take("user:42")) == (1, 2, 1)
    assert errors(caplog) == []


def test_a_change_of_the_algorithm_begins_on_a_key_of_its_own(client, limits):
    limits["api"].take("user:42")
    client.hset("limits", "api", "SLIDE 10 1m")
    assert row(limits["api"].take("user:42")) == (1, 10, 9)
    assert inspect(client, "limit:api.gcra:user:42") and inspect(client, "limit:api.slide:user:42")


@pytest.mark.parametrize(
    "malformed",
    ["", "GCRA", "TOKENS 10 60", "LEASE 10 60", "GCRA ten 60", "GCRA 10 60 BRUST 5", "GCRA 10 60 COST 2", "GCRA 10 60 UPTO 2",
     "GCRA 10 60 BLOCK 5", "GCRA 10 60 FORCE 1", "GCRA 10 60 ID a", "GCRA 10 0", "\xff"],
)  # fmt: skip
def test_a_malformed_policy_is_not_used_and_is_logged_once(client, limits, caplog, malformed):
    client.hset("limits", mapping={"api": "GCRA 20 1m", "uploads": "FIXED 2 1d"})
    limits["api"].take("user:42")
    client.hset("limits", "api", malformed.encode("latin-1"))
    for _ in range(3):
        assert row(limits["api"].take("user:42"))[:2] == (1, 20)
        assert limits["uploads"].take("user:42").limit == 2
    assert len(errors(caplog)) == 1
    # A client with decode_responses=True can't decode the last one, nor the rest of the hash.
    undecodable = malformed == "\xff" and client.get_encoder().decode_responses
    assert ("can't be read" if undecodable else "of api is not used") in errors(caplog)[0]
    # A process that starts now has only its default.
    assert row(CentralLimits(client, DEFAULTS, timeout=PATIENCE)["api"].take("user:43"))[:2] == (1, 10)
    client.hset("limits", "api", "GCRA 30 1m")
    assert row(limits["api"].take("user:42"))[:2] == (1, 30)


def test_a_missing_policy_leaves_the_last_one_in_force(client, limits, caplog):
    client.hset("limits", "api", "GCRA 20 1m")
    limits["api"].take("user:42")
    client.delete("limits")
    for _ in range(3):
        assert row(limits["api"].take("user:42"))[:2] == (1, 20)
    assert len(errors(caplog)) == 1 and "no policy of api any more" in errors(caplog)[0]
    client.hset("limits", "api", "GCRA 30 1m")
    assert row(limits["api"].take("user:42"))[:2] == (1, 30)
    client.delete("limits")
    client.rpush("limits", "not a hash")
    assert row(limits["api"].take("user:42"))[:2] == (1, 30)
    assert len(errors(caplog)) == 2 and "can't be read" in errors(caplog)[1]


def test_a_lost_connection_loses_no_change(client, limits, caplog):
    limits["api"].take("user:42")
    with redis.Redis.from_url(f"unix://{client.get_connection_kwargs()['path']}") as admin:
        admin.hset("limits", "api", "GCRA 20 1m")
        admin.client_kill_filter(_type="normal", skipme=True)
    # Without redis-py's retries, the read of the hash may fail once. The next one succeeds.
    with contextlib.suppress(Unavailable):
        limits["api"].take("user:42")
    assert limits["api"].take("user:42").limit == 20


def test_the_rights_that_a_process_needs(client, caplog):
    client.hset("limits", "api", "GCRA 20 1m")
    rights = {"keys": ["limit:*"], "commands": ["+rl.gcra", "+rl.peek", "+hgetall"]}
    client.acl_setuser("app", enabled=True, reset=True, passwords=["+secret"], **rights)
    client.execute_command("ACL", "SETUSER", "app", "%R~limits")
    path = client.get_connection_kwargs()["path"]
    with redis.Redis(unix_socket_path=path, username="app", password="secret", retry=None) as app:
        assert row(CentralLimits(app, DEFAULTS, timeout=PATIENCE)["api"].take("user:42"))[:2] == (1, 20)
        with pytest.raises(redis.exceptions.NoPermissionError):
            app.hset("limits", "api", "GCRA 1000 1")
    client.acl_deluser("app")
    assert errors(caplog) == []


def check_and_set(socket, policy):
    """Runs the lines with which docs/operations.md changes a policy, with the rights that it names for operators."""
    text = OPERATIONS.read_text()
    [lines] = re.findall(r"^(policy='.*'\nredis-cli -e RL\.PEEK .*\n)", text, re.MULTILINE)
    shown = "policy='GCRA 200 1 BURST 20'"
    assert shown in lines
    client = shutil.which("redis-cli") or shutil.which("valkey-cli")
    command = f"{shlex.quote(client)} -s {shlex.quote(socket)} --user operator"
    script = f"redis-cli() {{ {command} \"$@\"; }}\n" + lines.replace(shown, f"policy={shlex.quote(policy)}")
    environment = {**os.environ, "REDISCLI_AUTH": "secret"}
    return subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True, env=environment, timeout=60)


def test_an_operator_checks_a_policy_and_sets_it(client, socket, limits):
    rights = "+hset +hgetall +rl.peek ~limits"
    text = " ".join(OPERATIONS.read_text().split())
    assert f"Operators need `{rights}`, and `%R~limit:*` for the check" in text
    client.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">secret", *rights.split(), "%R~limit:*")
    try:
        for policy in ("GCRA 200 1 BURST 20", "FIXED 5 1d", "GCRA 0 1"):
            done = check_and_set(socket, policy)
            assert done.returncode == 0, done
            assert text_of(client.hget("limits", "api")) == policy
            limits["api"].take("user:42")
            assert limits.policies["api"][0] == policy
        # What a process refuses is not set.
        for policy in ("GCRA 200 1 COST 5", "GCRA 200 1 BRUST 20", "GCRA 200", "GCRA 200 1 BLOCK 5", "TOKENS 1 1"):
            assert check_and_set(socket, policy).returncode != 0, policy
            assert text_of(client.hget("limits", "api")) == "GCRA 0 1"
            refused(limits, policy)
        # Except a lease, as the document says.
        assert check_and_set(socket, "LEASE 4 30").returncode == 0
        refused(limits, "LEASE 4 30")
        # Each of the rights is needed.
        for right in ("-hset", "-rl.peek", "resetkeys"):
            client.execute_command("ACL", "SETUSER", "operator", right)
            done = check_and_set(socket, "GCRA 7 1")
            assert "NOPERM" in done.stdout + done.stderr
            assert text_of(client.hget("limits", "api")) == "LEASE 4 30"
            client.execute_command("ACL", "SETUSER", "operator", *rights.split(), "%R~limit:*")
    finally:
        client.acl_deluser("operator")


def test_without_a_server(dead_socket, caplog):
    limits = CentralLimits(redis.Redis(unix_socket_path=dead_socket, retry=None), DEFAULTS, every=0, timeout=0.2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            limits["api"].take("user:42")
    assert len(errors(caplog)) == 1 and "can't be read" in errors(caplog)[0]


def test_the_hash_is_read_once_in_each_interval(client):
    limits = CentralLimits(client, DEFAULTS, every=3600, timeout=PATIENCE)
    client.hset("limits", "api", "GCRA 20 1m")
    assert limits["api"].take("user:42").limit == 10
    limits.due = 0
    assert limits["api"].take("user:42").limit == 20
    reads = lambda: client.info("commandstats")["cmdstat_hgetall"]["calls"]
    before = reads()
    for _ in range(5):
        limits["api"].take("user:42")
    assert reads() == before


THREADS = 2
# Threads that call without end, until the input ends. Prints how many units they were granted.
LOAD = """
import sys, threading, time
import redis
from central_limits import CentralLimits

port, name, default = sys.argv[1:]
limits = CentralLimits(redis.Redis(port=int(port), client_name=name, retry=None, socket_timeout=60), {"api": default}, timeout=20)
ended = threading.Event()
granted = []

def load():
    mine = 0
    while not ended.is_set():
        mine += limits["api"].take("all").granted
        time.sleep(0.002)
    granted.append(mine)

threads = [threading.Thread(target=load) for _ in range(%d)]
for thread in threads:
    thread.start()
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
assert len(granted) == len(threads)
print(sum(granted))
""" % THREADS


class Samples:
    """How many calls the server has granted, and when by its own clock. Both are read in one transaction."""

    def __init__(self, admin, algorithm="gcra"):
        self.admin = admin
        self.field = f"rl_{algorithm}_granted"
        self.all = []
        self.take()

    def take(self):
        pipe = self.admin.pipeline(transaction=True)
        (seconds, micros), counts = pipe.time().info("rl").execute()
        self.all.append((seconds + micros / 1_000_000, counts[self.field]))
        return self.all[-1]

    def check(self, since, until, *policies):
        """Between any two samples of this time, there are at most as many grants as the largest capacity, and what the highest
        rate brings in between."""
        rate = max(rate for rate, _ in policies)
        capacity = max(capacity for _, capacity in policies)
        some = [each for each in self.all if since <= each[0] <= until]
        assert len(some) > 10
        lowest = float("inf")
        for at, granted in some:
            level = granted - rate * (at - since)
            lowest = min(lowest, level)
            # 1 more, because the server reads its clock more than once in a transaction.
            assert level - lowest <= capacity + 1

    def reach(self, rate):
        """Takes samples until the grants of a second come near to this rate."""
        start, before = self.take()
        while True:
            at, granted = self.take()
            if at - start >= 1:
                if granted - before >= 0.8 * rate * (at - start):
                    return
                start, before = at, granted
            assert at - self.all[0][0] < 300, f"the rate {rate} was never reached"


class Monitor(threading.Thread):
    """Records the commands that the server executes, in its order: when by its clock, from which client, and their words. Ends
    when the server does."""

    def __init__(self, port):
        super().__init__()
        self.monitor = redis.Redis(port=port, socket_timeout=None, retry=None).monitor().__enter__()
        self.commands = []
        self.start()

    def run(self):
        with contextlib.suppress(redis.ConnectionError):
            while True:
                each = self.monitor.next_command()
                self.commands.append((each["time"], f"{each['client_address']}:{each['client_port']}", each["command"].split()))

    def count(self, *words):
        """How many commands begin with these words."""
        return sum(each[: len(words)] == list(words) for _, _, each in list(self.commands))


def policy(rate, capacity):
    return f"GCRA {rate} 1 BURST {capacity}"


def sent(rate, capacity):
    """What calls with this policy send after the key."""
    return [str(rate), "1s", "BURST", str(capacity)]


@contextlib.contextmanager
def loads(port, count, default):
    """Processes that call without end. Yields a function that ends them, and returns how many units they were granted."""
    command = [sys.executable, "-B", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{LOAD}", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    here = pathlib.Path(__file__).parent
    processes = [subprocess.Popen([*command, f"process-{n}", default], cwd=here, **pipes) for n in range(count)]
    try:

        def end():
            outputs = [(*process.communicate("", timeout=60), process.returncode) for process in processes]
            assert all(errors == "" and status == 0 for _, errors, status in outputs), outputs
            return sum(int(output) for output, _, _ in outputs)

        yield end
    finally:
        for process in processes:
            process.kill()
            process.communicate()


PROCESSES = 3
# Rates and capacities. The capacity stays, so that no more is granted while two policies are in use than the larger one allows.
STEPS = [(50, 20), (200, 20), (20, 20)]


def test_limits_change_under_load_without_a_restart():
    [port] = free_ports(1)
    server = running_server("--port", port, "--bind", "127.0.0.1")
    with contextlib.ExitStack() as after, server, redis.Redis(port=port, decode_responses=True) as admin:
        monitor = Monitor(port)
        after.callback(monitor.join)
        samples = Samples(admin)
        with loads(port, PROCESSES, policy(*STEPS[0])) as end:
            samples.reach(STEPS[0][0])
            for step in STEPS[1:]:
                admin.hset("limits", "api", policy(*step))
                # Each process checks the new policy before it uses it.
                while monitor.count("RL.PEEK", "GCRA", "limit:api.gcra:check", *sent(*step)) < PROCESSES:
                    at, _ = samples.take()
                    assert at - samples.all[0][0] < 300, "a process never read the new policy"
                samples.reach(step[0])
            names = {client["addr"]: client["name"] for client in admin.client_list()}
            granted = end()
        # No process was restarted or had an error, and each knows what it was granted.
        assert samples.take()[1] == granted
        admin.echo("the-end")
        eventually(lambda: monitor.commands[-1][2] == ["ECHO", "the-end"])

    since, until = samples.all[0][0], samples.all[-1][0]
    for old, new in zip(STEPS, STEPS[1:]):
        words = policy(*new).split()[1:]
        [change] = [n for n, (*_, command) in enumerate(monitor.commands) if command == ["HSET", "limits", "api", "GCRA", *words]]
        changed = monitor.commands[change][0]
        switched = changed
        for name in sorted(set(names.values()) - {""}):
            later = [(at, command) for at, address, command in monitor.commands[change:] if names.get(address) == name]
            # The first read of the hash after the change takes the new policy over.
            reads = [command[0] for _, command in later if command[0] in ("HGETALL", "RL.PEEK")]
            assert reads[:2] == ["HGETALL", "RL.PEEK"] and "RL.PEEK" not in reads[2:3]
            checked = next(n for n, (_, command) in enumerate(later) if command[0] == "RL.PEEK")
            # After that, each thread may send the one call that it had begun.
            is_old = lambda command: command[0] == "RL.GCRA" and command[2:] == sent(*old)
            assert sum(is_old(command) for _, command in later[checked:]) <= THREADS
            switched = max([switched, *(at for at, command in later if is_old(command))])
        print(f"from {policy(*old)} to {policy(*new)} in {switched - changed:.2f} s")
        # Mostly a second: the interval of the reads. The rest is for a busy machine.
        assert switched - changed < 10
        # One policy, then both, and then the other one.
        samples.check(since, changed, old)
        samples.check(since, switched, old, new)
        since = switched
    samples.check(since, until, STEPS[-1])


@pytest.fixture
def admin(socket):
    with redis.Redis(unix_socket_path=socket) as admin:
        yield admin


def in_turns(client, samples, command, policies):
    """The worst changeover, one that does not end: two policies take turns on one key. Returns how many units each got."""
    granted = [0, 0]
    start = samples.all[0][0]
    while samples.take()[0] < start + 1.5:
        for n, words in enumerate(policies):
            granted[n] += client.execute_command(command, "key", *words)[0]
    assert samples.all[-1][1] - samples.all[0][1] == sum(granted) > 0
    return granted


@pytest.mark.parametrize("algorithm, word", [("gcra", "BURST"), ("bucket", "CAPACITY")])
@pytest.mark.parametrize("policies", [[(50, 20), (200, 20)], [(50, 5), (200, 20)], [(50, 20), (200, 5)]])
def test_a_changeover_of_rates_is_bounded(admin, algorithm, word, policies):
    samples = Samples(admin, algorithm)
    granted = in_turns(admin, samples, f"RL.{algorithm}", [(rate, 1, word, capacity) for rate, capacity in policies])
    # Each grant under the smaller capacity may free the difference again, for the larger one.
    (_, one), (_, other) = policies
    freed = abs(one - other) * granted[0 if one < other else 1]
    rate = max(rate for rate, _ in policies)
    samples.check(samples.all[0][0], samples.all[-1][0], (rate, max(one, other) + freed))


@pytest.mark.parametrize("algorithm, windows", [("slide", 1), ("fixed", 2)])
def test_a_changeover_of_windows_is_bounded_by_the_larger_limit(admin, algorithm, windows):
    samples = Samples(admin, algorithm)
    in_turns(admin, samples, f"RL.{algorithm}", [(50, 1), (200, 1)])
    first = 0
    for at, granted in samples.all:
        while samples.all[first][0] <= at - 1:
            first += 1
        # Within less than a second, which touches at most two fixed windows.
        assert granted - samples.all[first][1] <= windows * 200
