"""At most 4 reports at the same time, over all processes. The others wait in line, first come first served. A lease is renewed while
its job runs; if the process dies, the lease ends within its ttl, and the first in line gets it."""

import asyncio
import os

import redis.asyncio
from redis_rl import Lease, LeaseLost, Limits


async def report(reports, customer):
    try:
        async with reports.hold("all", wait=3600):
            await asyncio.sleep(0.1)  # the work
            print("the report of", customer, "is done")
    except LeaseLost:
        # The job was cancelled, because another one may have its place now.
        print("the report of", customer, "has lost its lease")


async def main():
    client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    async with Limits(client) as limits:
        reports = limits.limit("reports", Lease(4, ttl=30))
        await asyncio.gather(*(report(reports, f"customer {number}") for number in range(10)))
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
