"""Processes that are forked or spawned, and signals: what is charged is read on the server. Each program has a watchdog, which shows
where its threads are if it hangs."""

import http.client
import json
import multiprocessing
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import billiard
import pytest
import redis

from conftest import eventually, free_ports, inspect
from helpers import limits_of, used
from redis_rl import Fixed, Lease

CONTEXTS = pytest.mark.parametrize(
    "context",
    [multiprocessing.get_context("fork"), multiprocessing.get_context("spawn"), billiard.get_context("fork")],
    ids=["fork", "spawn", "billiard"],
)
WATCHDOG_S = 100


def run_program(text, *arguments):
    """Runs a program, and returns what it prints as JSON."""
    head = f"import faulthandler\nfaulthandler.dump_traceback_later({WATCHDOG_S}, exit=True)\n"
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    command = [sys.executable, "-B", "-c", head + text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=3 * WATCHDOG_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spend(wallet, spent):
    """Takes units until several calls in a row were denied, and adds what was granted to a list."""
    total = denied = 0
    while denied < 3:
        granted = wallet.take("a", 1 + total % 3).granted
        total += granted
        denied = 0 if granted else denied + 1
    spent.append(total)


def process(socket, threads, results):
    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        wallet = limits.wallet(limits.limit("api", Fixed("5000/h")), batch=70, idle=0.05)
        spent = []
        workers = [threading.Thread(target=spend, args=(wallet, spent)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    results.put(sum(spent))


@CONTEXTS
def test_threads_and_processes_never_spend_more_than_the_server_has_charged(context, socket, client):
    results = context.Queue()
    processes = [context.Process(target=process, args=(socket, 6, results)) for _ in range(3)]
    for each in processes:
        each.start()
    spent = [results.get(timeout=120) for _ in processes]
    for each in processes:
        each.join()
    # All is settled: what the server still counts is exactly what was spent, and nothing is left on the key that nobody holds.
    assert sum(spent) == used(client, "api:a") and 4990 <= sum(spent) <= 5000
    assert inspect(client, "api:a")["ids"] == 0


FORKS = """
import json, os, signal, sys, threading, redis
from helpers import limits_of
from redis_rl import Fixed, Lease
limits = limits_of(redis.Redis(unix_socket_path=sys.argv[1]))
limit, wallet_limit = limits.limit("api", Fixed("1000000/h")), limits.limit("units", Fixed("1000/h"))
wallet = limits.wallet(wallet_limit, batch=500, idle=600)
spent = int(wallet.take("a").granted)
stop = threading.Event()

def hammer(number):
    mine = limits.wallet(limit, batch=3, idle=0.01)
    while not stop.is_set():
        mine.take("busy")
        limit.take("busy")

threads = [threading.Thread(target=hammer, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
children = []
with limit.charge("block", 100) as charge, limits.limit("jobs", Lease(1, 60)).hold("a"):
    for number in range(20):
        read, write = os.pipe()
        pid = os.fork()
        children.append((pid, read))
        if pid == 0:
            # Ends it if it hangs. The watchdog of its parent does not run here.
            signal.alarm(60)
            break
        os.close(write)
    else:
        charge.used = 70
if pid == 0:
    # It has left the blocks of its parent, and settled nothing.
    mine = 0
    if number % 2:
        mine += wallet.take("a").granted
    else:
        assert limit.take("child")
    limits.close()
    os.write(write, str(mine).encode())
    os._exit(0)
failed = 0
for pid, read in children:
    with os.fdopen(read) as pipe:
        spent += int(pipe.read() or 0)
    failed += os.waitpid(pid, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
while wallet.take("a"):
    spent += 1
limits.close()
print(json.dumps({"spent": spent, "failed": failed}))
"""


def test_forks_while_threads_hold_locks(socket, client):
    """No child hangs. A child that closes its limits, or leaves the blocks of its parent, settles nothing of its parent's."""
    said = run_program(FORKS, socket)
    assert said == {"spent": 1000, "failed": 0}
    assert (used(client, "units:a"), used(client, "api:block"), used(client, "api:child")) == (1000, 70, 10)
    assert inspect(client, "jobs:a") is None and inspect(client, "units:a")["ids"] == 0


APP = """
import atexit, os, flask, redis
from redis_rl import Fixed, Limits
from redis_rl.flask import FlaskLimits
app = flask.Flask("app")
limits = Limits(redis.Redis(unix_socket_path=os.environ["SOCKET"]), timeout=20, connect_timeout=20)
atexit.register(limits.close)
wallet = limits.wallet(limits.limit("api", Fixed("300/h")), batch=20, idle=0.2)
# Before the fork, with --preload. A process that is late may be denied.
with open("taken", "a") as file:
    file.write("x" if wallet.take("site") else "")

@app.get("/")
@FlaskLimits(app)(wallet, key=lambda request: "site")
def home():
    return "home"
"""


@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["gunicorn", "preload"])
def test_gunicorn(options, socket, client, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    [port] = free_ports(1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SOCKET": socket}
    command = [sys.executable, "-B", "-m", "gunicorn", "-w", "4", "-b", f"127.0.0.1:{port}", *options, "app:app"]
    log = open(tmp_path / "log", "w+")
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    def get():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    try:
        eventually(lambda: server.poll() is not None or get() == 200)
        statuses, lock = [], threading.Lock()

        def ask():
            for _ in range(60):
                status = get()
                with lock:
                    statuses.append(status)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        server.wait(60)
        log.close()
    before = len((tmp_path / "taken").read_text())
    assert before == 1 if options else 1 <= before <= 4
    assert set(statuses) == {200, 429}, (tmp_path / "log").read_text()
    # One more was granted while it started.
    assert used(client, "api:site") == statuses.count(200) + before + 1 <= 300
    assert inspect(client, "api:site")["ids"] == 0


TASKS = """
import os, celery, redis
from redis_rl import Limits, Fixed
app = celery.Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {f"data_folder_{way}": "." for way in ("in", "out")}
limits = Limits(redis.Redis(unix_socket_path=os.environ["SOCKET"]), timeout=20, connect_timeout=20)
wallet = limits.wallet(limits.limit("tasks", Fixed("300/h")), batch=20, idle=0.2)

@app.task
def take():
    taken = bool(wallet.take("site"))
    with open("taken", "a") as file:
        file.write("x" if taken else "-")
"""
SEND = """
import tasks
# Before the pool forks, and in the process that sends.
tasks.take()
for _ in range(400):
    tasks.take.delay()
tasks.limits.close()
"""


def test_celery_with_prefork(socket, client, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS + "if os.environ.get('WORKER'):\n    take()\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SOCKET": socket}
    subprocess.run([sys.executable, "-B", "-c", SEND], cwd=tmp_path, env=environment, check=True, timeout=120)
    command = [sys.executable, "-B", "-m", "celery", "-A", "tasks", "worker", "-P", "prefork", "-c", "4", "-l", "WARNING"]
    quiet = ["--without-heartbeat", "--without-gossip", "--without-mingle"]
    with open(tmp_path / "log", "w") as log:
        worker = subprocess.Popen(
            [*command, *quiet], cwd=tmp_path, env={**environment, "WORKER": "1", "C_FORCE_ROOT": "1"}, stdout=log, stderr=log
        )
    try:
        taken = tmp_path / "taken"
        eventually(lambda: worker.poll() is not None or len(taken.read_text()) >= 402)
        assert worker.poll() is None, (tmp_path / "log").read_text()
        granted = taken.read_text().count("x")
        # A process that holds the rest of a batch may have kept others from it: then it is given back.
        eventually(lambda: used(client, "tasks:site") == granted)
    finally:
        worker.terminate()
        worker.wait(60)
    assert 240 <= granted <= 300
    assert inspect(client, "tasks:site")["ids"] == 0 and used(client, "tasks:site") == granted


def test_a_killed_process_loses_its_lease(socket, client):
    def child():
        with limits_of(redis.Redis(unix_socket_path=socket)).limit("jobs", Lease(1, 1)).hold("a"):
            time.sleep(600)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        eventually(lambda: inspect(client, "jobs:a"))
        os.kill(process.pid, signal.SIGKILL)
        with limits_of(redis.Redis(unix_socket_path=socket)).limit("jobs", Lease(1, 1)).hold("a", wait=60):
            pass
    finally:
        process.kill()
        process.join()


SIGNALS = """
import json, logging, random, signal, sys, threading, time, redis
from helpers import limits_of
from redis_rl import Fixed, Lease
logging.disable()

class Late(Exception):
    "As SoftTimeLimitExceeded of Celery: no BaseException."

limits = limits_of(redis.Redis(unix_socket_path=sys.argv[1]), max_connections=3, repeat_denials=0.001)
api, jobs = limits.limit("{a}api", Fixed("100000000/h")), limits.limit("{a}jobs", Lease(1000, 1))
units = limits.limit("{a}units", Fixed("100000000/h"))
wallet = limits.wallet(units, batch=5, idle=0.01)
stop, spent, raised, done = threading.Event(), [0] * 4, 0, 0

def spend(number):
    while not stop.is_set():
        spent[number] += wallet.take("a").granted
        api.take("b")

def work():
    global done
    spent[0] += wallet.take("a").granted
    api.take("a")
    with api.charge("charge", 3) as charge:
        charge.used = 1
    with jobs.hold("a"):
        pass
    with limits.admit([(jobs, "a"), (api, "admit")], 2):
        pass
    try:
        api.take("a", cost=1_000_000_000)
    finally:
        done += 1

def late(number, frame):
    # Once: a second one would interrupt what the first one makes the package give back.
    global armed
    if armed:
        armed = False
        raise Late

armed = False
signal.signal(signal.SIGALRM, late)
threads = [threading.Thread(target=spend, args=(number,), daemon=True) for number in range(1, 4)]
for thread in threads:
    thread.start()
seed = int(sys.argv[2])
end = time.monotonic() + 1.5
random.seed(seed)
while time.monotonic() < end or raised < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.02), 0.05)
        while True:
            # Python ignores what is raised while it removes an object.
            armed = True
            work()
    except (Late, RuntimeError, KeyError) as error:
        # `Thread.start` is Python code, which can turn the exception into "release unlocked lock", or into a KeyError of `_limbo`.
        if not isinstance(error, Late) and not isinstance(error.__context__, Late):
            raise
        armed = False
        raised += 1
# Nothing is locked: all calls go on, in all threads.
armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
for _ in range(20):
    work()
stop.set()
for thread in threads:
    thread.join()
node = next(iter(limits._calls._nodes.values()))
# The thread that gives back what wallets have left may be in a call. A place that was lost stays taken.
for _ in range(500):
    left = len(node._places.inside), len(node.waiting)
    if left == (0, 0):
        break
    time.sleep(0.01)
limits.close()
names = [thread.name for thread in threading.enumerate() if thread.name == "redis-rl"]
print(json.dumps({"spent": sum(spent), "done": done, "raised": raised, "left": left, "threads": names}))
"""


@pytest.mark.parametrize("seed", range(3))
def test_an_exception_of_a_signal_at_any_moment(seed, socket, client):
    said = run_program(SIGNALS, socket, seed)
    assert said["left"] == [0, 0] and said["raised"] >= 300 and said["done"] > 40
    # A lease whose block was interrupted while it ended is not renewed any more.
    eventually(lambda: inspect(client, "{a}jobs:a") is None)
    # What was interrupted may have been charged without being spent, but never the other way round.
    charged = used(client, "{a}units:a")
    assert said["spent"] <= charged <= said["spent"] + said["raised"]
    assert inspect(client, "{a}units:a")["ids"] == 0


def test_without_select_poll(socket, client, monkeypatch):
    """As on Windows, and with eventlet: connections are used again."""
    monkeypatch.delattr(select, "poll")
    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        api = limits.limit("api", Fixed("10/h"))
        assert all(api.take("a") for _ in range(3)) and api.wait("a", 5)
    assert used(client, "api:a") == 4


def test_a_thread_that_can_t_start(socket, client, monkeypatch):
    """A wallet works without the thread that tidies up; a lease that can't be renewed is not taken."""

    def fails(self):
        raise RuntimeError("can't start new thread")

    with limits_of(redis.Redis(unix_socket_path=socket)) as limits:
        wallet = limits.wallet(limits.limit("api", Fixed("1000/h")), batch=10, idle=0.05)
        monkeypatch.setattr(threading.Thread, "start", fails)
        assert all(wallet.take("a") for _ in range(25))
        with pytest.raises(RuntimeError), limits.limit("jobs", Lease(1, 60)).hold("a"):
            pytest.fail("ran without renewals")
        monkeypatch.undo()
        # The next fetch begins the thread that tidies up.
        assert all(wallet.take("a") for _ in range(10))
        eventually(lambda: not wallet._purses)
        assert inspect(client, "jobs:a") is None and wallet.take("a")
    assert used(client, "api:a") == 36
