"""The load test of the client packages. 20 processes in Python, Node.js and Rust spend units of one key as fast as they can, from
wallets, and by calls whose denials they repeat for a moment. One process of each language has 100 threads (in Node.js: 100 calls at
the same time), the others 4. What they spend must never exceed what the server has charged.

Usage: load.py [--seconds 60] [--languages python,node,rust]. It starts a server, and three parts take a third of the time each:

1. Wallets, and a limit that is never reached. At each moment the server has charged at least what the processes have reported;
   after the wallets were closed, it has charged exactly what was spent, and no id is left on the key.
2. Wallets, and a limit that is always reached. By the server's clock, no more is spent than the burst and what the rate has given.
   Meanwhile the processes in Python fork, whose children spend and close, the server is stopped and goes on (SIGSTOP), and three
   processes are killed.
3. Denials that are repeated for 0.2 seconds. The limit is reached, and units are given back again and again. The processes take them
   all each time, although most of their calls do not ask the server.

A process gets what it has to do as JSON (`repeat` is how long it repeats denials, and `forks` whether it forks), says that it is
ready, begins with the first line that it reads, and ends with the second one. Each line that it writes has the calls that it has
decided, the units that it has spent, and its failures.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import redis

CLIENTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CLIENTS / "python/tests")]
from servers import eventually, inspect, running_server  # noqa: E402

PYTHON = [sys.executable, "-B", CLIENTS / "load/spender.py"]
NODE = ["node", CLIENTS / "load/spender.mjs"]
RUST = [os.environ.get("REDIS_RL_SPENDER", CLIENTS.parent / "target/clients/rust/debug/examples/spender")]
# The command of each process, and its number of threads.
PROCESSES = [(PYTHON, 100), (RUST, 100), (NODE, 100), *[(PYTHON, 4)] * 6, *[(NODE, 4)] * 6, *[(RUST, 4)] * 5]
# A batch of each kind that lasts for some hundredths of a second.
BATCHES = {id(PYTHON): 2_000, id(NODE): 20_000, id(RUST): 100_000}
KEY = "load:key"


class Process:
    """A process that spends. `said` is the last line that it has written."""

    def __init__(self, command, **ask):
        self.said = {"calls": 0, "spent": 0}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONPATH": str(CLIENTS / "python/src")}
        self.process = subprocess.Popen([*map(str, command), json.dumps(ask)], env=environment, **pipes)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            # A process that is killed may end within a line.
            if line.endswith("\n"):
                self.said = json.loads(line)

    def go_on(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def says(self, what):
        ended = self.process.poll() is not None
        if ended:
            # The reader may not have seen its last line yet.
            self.reader.join()
        assert not self.said.get("failures"), self.said
        assert what in self.said or not ended, f"it ended with {self.process.poll()}, and said {self.said}"
        return what in self.said

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


@contextlib.contextmanager
def spending(socket, what, batches=None, **ask):
    """Runs all processes, and yields them when they are ready. They spend from `go_on` until `end`."""
    processes = []
    try:
        for command, threads in PROCESSES:
            batch = batches(command) if batches else 0
            processes.append(Process(command, **{"socket": socket, "threads": threads, "batch": batch, "repeat": 0, **ask}))
        for each in processes:
            eventually(lambda: each.says("ready"), 120)
        yield processes
    finally:
        for each in processes:
            each.kill()
    say(f"{what}: {total(processes, 'calls'):,} calls of {len(processes)} processes were decided")


def go_on(processes):
    for each in processes:
        each.go_on()


def end(processes):
    go_on(processes)
    for each in processes:
        eventually(lambda: each.says("closed"), 120)


def total(processes, what):
    return sum(each.said[what] for each in processes)


def say(text):
    print(text, flush=True)


def seconds_of(client):
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def calls_of(client, command):
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def ids_of(client):
    return (inspect(client, KEY) or {}).get("ids", 0)


def never_reached(server, client, socket, seconds):
    limit = 4_000_000_000

    def used():
        return limit - client.execute_command("RL.PEEK", "SLIDE", KEY, limit, "1d", "SEGMENTS", 24)[2]

    looks, asked = 0, calls_of(client, "rl.slide")
    batches = lambda command: BATCHES[id(command)]
    with spending(socket, "Wallets below the limit", batches, rate=f"{limit}/d", burst=0, cost=4) as processes:
        go_on(processes)
        begin = seconds_of(client)
        while seconds_of(client) < begin + seconds:
            # First what was spent, and then what was charged.
            spent = total(processes, "spent")
            charged = used()
            assert spent <= charged, f"{spent:,} units were spent, and the server has charged {charged:,}"
            looks += spent > 0
            time.sleep(0.01)
        end(processes)
        spent, calls = total(processes, "spent"), total(processes, "calls")
    assert looks > 20 and all(each.said["spent"] for each in processes)
    assert spent == used(), f"{spent:,} units were spent, and the server has charged {used():,}"
    assert spent < limit and ids_of(client) == 0, f"{ids_of(client)} ids are left"
    fetches = calls_of(client, "rl.slide") - asked
    assert fetches * 20 < calls, f"{fetches:,} fetches"
    say(f"  {spent:,} units were spent and charged, with {fetches:,} fetches; what was charged was enough at {looks} looks")


def always_reached(server, client, socket, seconds):
    client.delete(KEY)
    rate, burst, batch = 20_000, 40_000, 500
    with spending(socket, "Wallets at the limit", lambda _: batch, rate=f"{rate}/s", burst=burst, cost=4, forks=True) as processes:
        begin = seconds_of(client)
        go_on(processes)
        kills, stops = [0, 1, 2], 0
        while seconds_of(client) < begin + seconds:
            spent = total(processes, "spent")
            assert spent <= burst + rate * (seconds_of(client) - begin), f"{spent:,} units were spent"
            if kills and seconds_of(client) > begin + seconds / 2:
                processes[kills.pop()].kill()
            if seconds_of(client) > begin + seconds * (stops + 1) / 5:
                stops += 1
                server.send_signal(signal.SIGSTOP)
                try:
                    time.sleep(0.3)
                finally:
                    server.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        end(processes[3:])
        seconds = seconds_of(client) - begin
        spent, calls = total(processes, "spent"), total(processes, "calls")
    granted = burst + rate * seconds
    assert spent <= granted, f"{spent:,} units were spent"
    assert stops, "the server was never stopped"
    say(f"  {spent:,} units were spent, {spent / granted:.1%} of the {granted:,.0f} that the limit allows; {stops} stops")


def given_back(server, client, socket, seconds):
    client.delete(KEY)
    limit, units = 1000, 50
    policy = ["SLIDE", KEY, limit, "1d", "SEGMENTS", 24]
    left = lambda: client.execute_command("RL.PEEK", *policy)[2]
    asked, rounds = calls_of(client, "rl.slide"), 0
    with spending(socket, "Denials that are repeated", rate=f"{limit}/d", burst=0, cost=1, repeat=0.2) as processes:
        go_on(processes)
        eventually(lambda: left() == 0, 120)
        begin = seconds_of(client)
        while seconds_of(client) < begin + seconds:
            client.execute_command("RL.SLIDE", *policy[1:], "REFUND", units)
            rounds += 1
            eventually(lambda: left() == 0, 120)
            # Meanwhile the processes ask, are denied, and repeat that.
            time.sleep(0.5)
        end(processes)
        spent, calls = total(processes, "spent"), total(processes, "calls")
    assert spent == limit + units * rounds, f"{spent:,} units were spent, and the server has granted {limit + units * rounds:,}"
    asked = calls_of(client, "rl.slide") - asked - rounds
    assert asked * 5 < calls, f"{asked:,} calls asked the server, of {calls:,}"
    say(f"  {spent:,} units were granted and spent; {asked / calls:.1%} of the calls asked the server, {rounds} times units came back")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--languages", default="python,node,rust")
    options = parser.parse_args()
    seconds, commands = options.seconds / 3, {"python": PYTHON, "node": NODE, "rust": RUST}
    wanted = [commands[name] for name in options.languages.split(",")]
    PROCESSES[:] = [each for each in PROCESSES if any(each[0] is command for command in wanted)]
    with running_server() as (server, socket), redis.Redis(unix_socket_path=socket, socket_timeout=60) as client:
        for part in (never_reached, always_reached, given_back):
            part(server, client, socket, seconds)


if __name__ == "__main__":
    main()
