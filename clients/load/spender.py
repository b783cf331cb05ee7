"""A process of the load test, in Python: load.py describes what it does."""

import json
import random
import sys
import threading

import redis
from redis_rl import Gcra, Limits, Slide

ask = json.loads(sys.argv[1])
limits = Limits(redis.Redis(unix_socket_path=ask["socket"]), patience=60)
policy = Gcra(ask["rate"], burst=ask["burst"]) if ask["burst"] else Slide(ask["rate"], segments=24)
limit = limits.limit("load", policy)
spender = limits.wallet(limit, batch=ask["batch"]) if ask["batch"] else limits.cached(limit)
stop = threading.Event()
# Each thread adds up its own: no two of them write the same element.
spent, calls, failures = [0] * ask["threads"], [0] * ask["threads"], []


def spend(thread):
    try:
        while not stop.is_set():
            for _ in range(100):
                cost = random.randint(1, ask["cost"])
                decision = spender.take("key", cost)
                calls[thread] += 1
                if decision:
                    assert decision.granted == cost and decision.counted
                    spent[thread] += cost
    except BaseException as error:
        failures.append(repr(error))


def say(**more):
    print(json.dumps({"calls": sum(calls), "spent": sum(spent), "failures": failures, **more}), flush=True)


threads = [threading.Thread(target=spend, args=(number,), daemon=True) for number in range(ask["threads"])]
say(ready=True)
sys.stdin.readline()
for each in threads:
    each.start()


def stop_when_asked():
    sys.stdin.readline()
    stop.set()


threading.Thread(target=stop_when_asked, daemon=True).start()
while not stop.wait(0.1):
    say()
for each in threads:
    each.join()
spender.close()
limits.close()
say(closed=True)
