"""A gateway to a language model. A call of a tenant is charged all of these, or none: one of 4 places, one of 60 requests a minute,
its estimated tokens of the tenant's 20 000 a minute, and of the 100 000 of all tenants together. It waits in line for them, renews
its place while it runs, and is settled to the tokens that it has used.

The rules stand in this order because they are settled in the reverse order: the key for which most calls wait is settled first,
and the place is released last, so that the next call of the tenant finds the tokens settled. All keys have the hash tag {llm}, so
that they are on one node of a cluster."""

import asyncio
import os

import redis.asyncio
from redis_rl import AsyncLimits, Lease, Slide


class Gateway:
    def __init__(self, limits, model):
        self.limits, self.model = limits, model
        self.running = limits.limit("{llm}running", Lease(4, ttl=30))
        self.requests = limits.limit("{llm}requests", Slide("60/m"))
        self.tokens = limits.limit("{llm}tokens", Slide("20000/m"))
        self.all = limits.limit("{llm}all", Slide("100000/m"))

    def admit(self, tenant, prompt):
        rules = [(self.running, tenant), (self.requests, tenant, 1), (self.tokens, tenant), (self.all, "tokens")]
        return self.limits.admit(rules, estimate=len(prompt) // 3 + 1000, wait=90)

    async def complete(self, tenant, prompt):
        async with self.admit(tenant, prompt) as call:
            answer = await self.model.complete(prompt, max_tokens=1000)
            call.used = answer["tokens"]
        return answer["text"]

    async def stream(self, tenant, prompt, send):
        async with self.admit(tenant, prompt) as call:
            call.used = len(prompt) // 3  # what is charged if the client disconnects now
            async for chunk in self.model.stream(prompt, max_tokens=1000):
                call.used += chunk["tokens"]
                await send(chunk["text"])


class Model:
    """Stands for the client of a model."""

    async def complete(self, prompt, max_tokens):
        await asyncio.sleep(0.01)
        return {"text": prompt.upper(), "tokens": len(prompt) // 3 + 20}

    async def stream(self, prompt, max_tokens):
        for word in prompt.upper().split():
            await asyncio.sleep(0.01)
            yield {"text": word, "tokens": 2}


async def main():
    client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    async with AsyncLimits(client) as limits:
        gateway = Gateway(limits, Model())
        calls = [gateway.complete(tenant, "hello there") for tenant in ("ada", "bob") for _ in range(10)]
        print(len(await asyncio.gather(*calls)), "answers")

        async def send(text):
            print(text)

        await gateway.stream("ada", "one two three", send)
        print("ada has", (await gateway.tokens.peek("ada")).remaining, "tokens left")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
