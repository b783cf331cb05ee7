"""How programs use the types. mypy and pyright check this file; nothing runs it."""

import redis
import redis.asyncio
import requests

from redis_rl import AllDecision, AsyncLimits, Bucket, Decision, Fixed, Gcra, Lease, Limit, Limits, Named, Wallet


class Service:
    """The classes are types."""

    limits: Limits
    api: Limit
    wallet: Wallet

    def __init__(self, client: redis.Redis) -> None:
        self.limits = Limits(client, prefix="shop:", on_down=Gcra("20/s"), timeout=0.5, repeat_denials=0.2)
        self.api = self.limits.limit("api", Fixed("10/m"))
        self.wallet = self.limits.wallet(self.api, batch=10)

    def work(self) -> float:
        jobs = self.limits.limit("jobs", Lease(4, ttl="30s"))
        decision: Decision = self.api.take("user:42", cost=2)
        once: Decision = self.api.take(42, id="order:7")
        wait: float | None = decision.wait
        both: AllDecision = self.limits.all([(self.api, b"42", 1), (jobs, "42")], wait=2)

        @self.api.admit("{number}")
        def work(number: int) -> str:
            return str(number)

        text: str = work(3)
        with self.api.charge("a", 5) as charge, jobs.hold("a", units=2) as lease:
            charge.used = 4
            lease.check()
        with self.limits.admit([(jobs, "a"), (self.api, "a", 1), (self.api, b"b")], estimate=5, wait="2s") as call:
            call.used = 4
            call.check()
        named: Limit = self.limits.limit("named", Named("policy:api", Gcra("10/m"), lambda key: [f"policy:{key}"]))
        with self.limits.limit("held", Named("policy:jobs", Lease(4, ttl=30))).hold("a", wait=named.take("a").wait):
            pass
        rest: float = self.api.pause("a", "30s") + jobs.observe("a", requests.get("http://partner"), max_pause=60)
        self.api.resume("a")
        spent = rest + self.wallet.take("a").granted + once.granted + self.limits.let_through
        return decision.granted + len(text) + len(both.decisions) + spent + (0 if wait is None else 1)


async def tasks(client: redis.asyncio.Redis) -> float:
    limits: AsyncLimits = AsyncLimits(client, on_down="open")
    api = limits.limit("api", Bucket("10/m", capacity=5))
    jobs = limits.limit("jobs", Lease(4, ttl=30))

    @api.admit("{number}", wait=3)
    async def work(number: int) -> str:
        return str(number)

    text: str = await work(3)
    async with api.charge("a", 5) as charge, jobs.hold("a", wait=5) as lease:
        charge.used = 4
        await lease.renew()
    async with limits.admit([(jobs, "a"), (api, "a", 1), (api, "b")], estimate=5, wait=2, id="job:7") as call:
        call.used = 4
    rest: float = await api.pause("a", 30)
    await jobs.resume("a")
    async with api.admit("a") as decision:
        return decision.granted + len(text) + rest


def clusters(client: redis.RedisCluster, other: redis.asyncio.RedisCluster) -> None:
    Limits(client).limit("api", Fixed("1/s")).take("a")
    AsyncLimits(other).limit("api", Fixed("1/s"))
