"""Rate limits, budgets and leases on Redis or Valkey with the module redis-rl.

limits = Limits(redis.Redis())
api = limits.limit("api", Gcra("10/m", burst=5))
if not api.take("user:42"):
    ...
"""

from __future__ import annotations

from typing import Any, Literal, overload

import redis
import redis.asyncio

from ._aio import (
    AsyncAdmission,
    AsyncCachedLimit,
    AsyncCharge,
    AsyncGuard,
    AsyncHeldLease,
    AsyncLeaseLimit,
    AsyncLimit,
    AsyncLimits,
    AsyncLimitWallet,
)
from ._decision import AllDecision, Decision, headers
from ._errors import (
    Down,
    InvalidArgument,
    InvalidCost,
    InvalidId,
    InvalidKey,
    InvalidLimit,
    InvalidWait,
    LeaseLost,
    NoModule,
    RateLimited,
    RateLimitError,
    Refused,
    UnexpectedReply,
    WrongType,
)
from ._policy import Bucket, Fixed, Gcra, Lease, Policy, RatePolicy, Slide
from ._sync import Admission, CachedLimit, Charge, Guard, HeldLease, LeaseLimit, Limit, LimitWallet, SyncLimits

__version__ = "0.1.0"


@overload
def Limits(
    client: redis.Redis | redis.RedisCluster,
    prefix: str = "",
    on_down: Literal["open", "closed"] = "closed",
    patience: float = 1.0,
    *,
    peek_replica: bool = False,
    max_connections: int = 64,
) -> SyncLimits: ...
@overload
def Limits(
    client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
    prefix: str = "",
    on_down: Literal["open", "closed"] = "closed",
    patience: float = 1.0,
    *,
    peek_replica: bool = False,
    max_connections: int = 64,
) -> AsyncLimits: ...
def Limits(
    client: Any,
    prefix: str = "",
    on_down: Literal["open", "closed"] = "closed",
    patience: float = 1.0,
    *,
    peek_replica: bool = False,
    max_connections: int = 64,
) -> SyncLimits | AsyncLimits:
    """The limits of one client: for threads if the client is a redis.Redis or a redis.RedisCluster, for asyncio if it is
    one of redis.asyncio.

    prefix           stands before the names of all limits in the keys on the server
    on_down          "closed": a call without a decision raises Down. "open": it is let through, uncounted
    patience         how many seconds a call may take, besides its wait, until the server counts as down
    peek_replica     `peek` asks a replica, in a cluster
    max_connections  to one server, for calls that do not wait. A call that waits has a connection of its own"""
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        return AsyncLimits(client, prefix, on_down, patience, peek_replica, max_connections)
    if isinstance(client, (redis.Redis, redis.RedisCluster)):
        return SyncLimits(client, prefix, on_down, patience, peek_replica, max_connections)
    raise TypeError(f"a client is a Redis or a RedisCluster of redis or redis.asyncio, not {client!r}")


__all__ = [
    "Admission",
    "AllDecision",
    "AsyncAdmission",
    "AsyncCachedLimit",
    "AsyncCharge",
    "AsyncGuard",
    "AsyncHeldLease",
    "AsyncLeaseLimit",
    "AsyncLimit",
    "AsyncLimitWallet",
    "AsyncLimits",
    "Bucket",
    "CachedLimit",
    "Charge",
    "Decision",
    "Down",
    "Fixed",
    "Gcra",
    "Guard",
    "HeldLease",
    "InvalidArgument",
    "InvalidCost",
    "InvalidId",
    "InvalidKey",
    "InvalidLimit",
    "InvalidWait",
    "Lease",
    "LeaseLimit",
    "LeaseLost",
    "Limit",
    "LimitWallet",
    "Limits",
    "NoModule",
    "Policy",
    "RateLimitError",
    "RateLimited",
    "RatePolicy",
    "Refused",
    "Slide",
    "SyncLimits",
    "UnexpectedReply",
    "WrongType",
    "headers",
]
