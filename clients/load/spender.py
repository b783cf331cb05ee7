"""A process of the load test, in Python: load.py describes what it does."""

import json
import os
import random
import signal
import sys
import threading

import redis
from redis_rl import Gcra, Limits, Slide

ask = json.loads(sys.argv[1])
limits = Limits(redis.Redis(unix_socket_path=ask["socket"]), timeout=60, connect_timeout=60, repeat_denials=ask["repeat"])
policy = Gcra(ask["rate"], burst=ask["burst"]) if ask["burst"] else Slide(ask["rate"], segments=24)
limit = limits.limit("load", policy)
spender = limits.wallet(limit, batch=ask["batch"]) if ask["batch"] else limit
stop = threading.Event()
# Each thread adds up its own: no two of them write the same element.
spent, calls, failures, repeated = [0] * ask["threads"], [0] * ask["threads"], [], [0] * ask["threads"]


def spend(thread):
    try:
        while not stop.is_set():
            for _ in range(100):
                cost = random.randint(1, ask["cost"])
                decision = spender.take("key", cost)
                calls[thread] += 1
                repeated[thread] += decision.source == "repeated"
                if decision:
                    assert decision.granted == cost and decision.source in ("server", "wallet")
                    spent[thread] += cost
    except BaseException as error:
        failures.append(repr(error))


def say(**more):
    facts = {"calls": sum(calls), "spent": sum(spent), "repeated": sum(repeated), "failures": failures}
    print(json.dumps({**facts, **more}), flush=True)


def fork():
    """A child takes one unit with the wallet of its parent, and closes it. Returns what it has spent."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Ends it if it hangs.
            signal.alarm(60)
            granted = spender.take("key").granted
            limits.close()
            os.write(write, str(granted).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        granted = pipe.read()
    os.waitpid(pid, 0)
    if not granted:
        failures.append("a child did not end")
    return int(granted or 0)


threads = [threading.Thread(target=spend, args=(number,), daemon=True) for number in range(ask["threads"])]
say(ready=True)
sys.stdin.readline()
for each in threads:
    each.start()


def stop_when_asked():
    sys.stdin.readline()
    stop.set()


threading.Thread(target=stop_when_asked, daemon=True).start()
# The last element is of the children.
spent.append(0)
while not stop.wait(0.1):
    if ask.get("forks"):
        spent[-1] += fork()
    say()
for each in threads:
    each.join()
limits.close()
say(closed=True)
