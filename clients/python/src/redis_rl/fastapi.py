"""A limit for each request of FastAPI: see redis_rl.starlette, which has the code."""

from .starlette import RateLimit, RateLimitMiddleware, client_address

__all__ = ["RateLimit", "RateLimitMiddleware", "client_address"]
