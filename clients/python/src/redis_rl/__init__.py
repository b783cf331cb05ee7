"""Rate limits, budgets and leases on Redis or Valkey with the module redis-rl.

limits = Limits(redis.Redis())
api = limits.limit("api", Gcra("10/m", burst=5))
if not api.take("user:42"):
    ...
"""

from ._async._blocks import AsyncAdmission, AsyncCharge, AsyncHeld
from ._async._limits import AsyncLeaseLimit, AsyncLimit, AsyncLimits
from ._async._wallet import AsyncWallet
from ._decision import AllDecision, Decision, RateLimited, headers
from ._errors import (
    Closed,
    InvalidArgument,
    InvalidCost,
    InvalidId,
    InvalidKey,
    InvalidLimit,
    InvalidWait,
    LeaseLost,
    NoModule,
    NotAllowed,
    RateLimitError,
    Unavailable,
    UnexpectedReply,
    WrongType,
)
from ._keys import address_key
from ._policy import Bucket, Fixed, Gcra, Lease, Named, Policy, RatePolicy, Slide
from ._sync._blocks import Admission, Charge, Held
from ._sync._limits import LeaseLimit, Limit, Limits
from ._sync._wallet import Wallet

__version__ = "0.1.0"

__all__ = [
    "Admission",
    "AllDecision",
    "AsyncAdmission",
    "AsyncCharge",
    "AsyncHeld",
    "AsyncLeaseLimit",
    "AsyncLimit",
    "AsyncLimits",
    "AsyncWallet",
    "Bucket",
    "Charge",
    "Closed",
    "Decision",
    "Fixed",
    "Gcra",
    "Held",
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
    "Limits",
    "Named",
    "NoModule",
    "NotAllowed",
    "Policy",
    "RateLimitError",
    "RateLimited",
    "RatePolicy",
    "Slide",
    "Unavailable",
    "UnexpectedReply",
    "Wallet",
    "WrongType",
    "address_key",
    "headers",
]
