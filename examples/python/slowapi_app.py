"""slowapi with the storage of redis-rl: start it with `uvicorn slowapi_app:app`. A hit is sent once, and a window never grants more
than its limit."""

import os

import redis_rl.limits_storage  # noqa: F401: registers its URI schemes
from fastapi import FastAPI, Request
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

app = FastAPI()
uri = os.environ.get("LIMITS_URI", "redis-rl://localhost:6379")
app.state.limiter = limiter = Limiter(get_remote_address, storage_uri=uri, strategy="moving-window")
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


# slowapi's limits are in threads: so its routes are no coroutines.
@app.get("/export")
@limiter.limit("2 per hour")
def export(request: Request):
    return "the data"
