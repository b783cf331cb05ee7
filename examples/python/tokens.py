"""A budget of tokens for calls of a language model. A call is charged an estimate before it is made, waits in line if the budget has
too little left, and is settled to what it has used."""

import asyncio
import os

import redis.asyncio
from redis_rl import Limits, Slide


async def complete(tokens, model, team, prompt):
    # The wait is longer than the period: the server denies a call at once if its units will not be free in time by themselves.
    async with tokens.charge(team, estimate=len(prompt) // 3 + 1000, wait=90) as charge:
        answer = await model(prompt, max_tokens=1000)
        charge.used = answer["tokens"]  # an exception before this line gives everything back
    return answer["text"]


async def model(prompt, max_tokens):
    """Stands for the client of a model."""
    await asyncio.sleep(0.01)
    return {"text": prompt.upper(), "tokens": len(prompt) // 3 + 20}


async def main():
    client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    async with Limits(client) as limits:
        tokens = limits.limit("tokens", Slide("10000/m"))
        prompts = [f"What does rule number {number} say?" for number in range(30)]
        answers = await asyncio.gather(*(complete(tokens, model, "team-a", prompt) for prompt in prompts))
        used = 10000 - (await tokens.peek("team-a")).remaining
        print(f"{len(answers)} answers, {used} tokens used")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
