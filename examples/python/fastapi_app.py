"""FastAPI: 20 requests at once for each address, then one every 600 ms. One route has a limit of its own.
Start it with `uvicorn fastapi_app:app`.

A denied request is answered with 429, and all answers have the headers. Without a decision of Redis, this program answers 503
(`on_down="closed"`, the default); with "open" it would let requests through."""

import contextlib
import os

import redis.asyncio
from fastapi import Depends, FastAPI
from redis_rl import Fixed, Gcra, Limits
from redis_rl.fastapi import RateLimit, RateLimitMiddleware

client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
limits = Limits(client, prefix="web:")
exports = RateLimit(limits.limit("export", Fixed("2/h")))


@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    await limits.aclose()
    await client.aclose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(RateLimitMiddleware, limit=limits.limit("api", Gcra("100/m", burst=20)))


@app.get("/")
async def home():
    return "hello"


@app.get("/export", dependencies=[Depends(exports)])
async def export():
    return "the data"
