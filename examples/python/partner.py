"""A third party accepts 5 calls a second, and no call may be dropped. Four processes, and as many more as are started on other
machines, wait in one line on the server."""

import multiprocessing
import os
import time

import redis
from redis_rl import Down, Limits, Slide


def work(jobs):
    limits = Limits(redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost")))
    partner = limits.limit("partner", Slide("5/s"))
    for job in jobs:
        while True:
            try:
                if partner.wait("api", 60):
                    break
            except Down as down:  # such as a restart or a failover: stands in line again
                print(f"waiting again: {down}", flush=True)
                time.sleep(1)
        print(f"{time.strftime('%H:%M:%S')} job {job} calls the partner now\n", end="", flush=True)


if __name__ == "__main__":
    processes = [multiprocessing.Process(target=work, args=(range(first, 24, 4),)) for first in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
