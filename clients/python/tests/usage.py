"""How programs use the types. mypy checks this file; nothing runs it."""

import redis
import redis.asyncio

from redis_rl import AllDecision, Bucket, Decision, Fixed, Lease, Limits


def threads(client: redis.Redis) -> int:
    limits = Limits(client, prefix="shop:", on_down="open", patience=0.5)
    api = limits.limit("api", Fixed("10/m"))
    jobs = limits.limit("jobs", Lease(4, ttl="30s"))
    decision: Decision = api.take("user:42", cost=2)
    wait: float | None = decision.wait
    both: AllDecision = limits.all([(api, b"42", 1), (jobs, "42", 1)], wait=2)

    @api.protect("{number}")
    def work(number: int) -> str:
        return str(number)

    text: str = work(3)
    with api.charge("a", 5) as charge, jobs.hold("a") as lease:
        charge.used = 4
        lease.check()
    with limits.admit([(jobs, "a"), (api, "a", 1), (api, b"b")], estimate=5, wait="2s") as call:
        call.used = 4
        call.check()
    return decision.granted + len(text) + len(both.decisions) + (0 if wait is None else 1)


async def tasks(client: redis.asyncio.Redis) -> int:
    limits = Limits(client)
    api = limits.limit("api", Bucket("10/m", capacity=5))
    jobs = limits.limit("jobs", Lease(4, ttl=30))

    @api.protect("{number}", wait=3)
    async def work(number: int) -> str:
        return str(number)

    text: str = await work(3)
    async with api.charge("a", 5) as charge, jobs.hold("a", wait=5) as lease:
        charge.used = 4
        await lease.renew()
    async with limits.admit([(jobs, "a"), (api, "a", 1), (api, "b")], estimate=5, wait=2, id="job:7") as call:
        call.used = 4
    async with api.protect("a") as decision:
        return decision.granted + len(text)


def clusters(client: redis.RedisCluster, other: redis.asyncio.RedisCluster) -> None:
    Limits(client).limit("api", Fixed("1/s")).take("a")
    Limits(other).limit("api", Fixed("1/s"))
