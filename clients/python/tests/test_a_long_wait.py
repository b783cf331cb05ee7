"""A wait of more than a minute, with the default settings of the package and of redis-py. This file is the first, so that its test
runs beside all others."""

import asyncio
import threading

import redis
import redis.asyncio

from conftest import eventually, inspect, running_server
from helpers import limits_of
from redis_rl import Lease

WAIT_S = 62


def test_two_clients_keep_their_places_in_line_for_a_minute():
    with running_server() as (_, socket), redis.Redis(unix_socket_path=socket) as client:
        client.execute_command("RL.LEASE", "jobs:a", 1, 600, "ID", "other")
        granted = []
        now = lambda: client.time()[0]

        def blocked():
            return sorted(each["id"] for each in client.client_list() if "b" in each["flags"])

        def threads():
            limits = limits_of(redis.Redis(unix_socket_path=socket))
            with limits.limit("jobs", Lease(1, 600)).hold("a", wait=600):
                granted.append("threads")
                assert inspect(client, "jobs:a")["held"] == 1
            limits.close()

        async def tasks():
            other = redis.asyncio.Redis(unix_socket_path=socket)
            async with limits_of(other) as limits, limits.limit("jobs", Lease(1, 600)).hold("a", wait=600):
                granted.append("asyncio")
                assert inspect(client, "jobs:a")["held"] == 1
            await other.aclose()

        first = threading.Thread(target=threads)
        second = threading.Thread(target=lambda: asyncio.run(tasks()))
        first.start()
        eventually(lambda: inspect(client, "jobs:a")["waiting"] == 1)
        second.start()
        eventually(lambda: inspect(client, "jobs:a")["waiting"] == 2)
        begin, line = now(), blocked()
        eventually(lambda: now() > begin + WAIT_S, 4 * WAIT_S)
        # The same connections stand in line, and neither call was repeated.
        assert blocked() == line and len(line) == 2 and granted == []
        client.execute_command("RL.RELEASE", "jobs:a", "other")
        first.join()
        second.join()
        facts = client.info("rl")
        assert granted == ["threads", "asyncio"]
        assert (facts["rl_waits"], facts["rl_wait_timeouts"], facts["rl_waits_abandoned"]) == (2, 0, 0)
        assert inspect(client, "jobs:a") is None
