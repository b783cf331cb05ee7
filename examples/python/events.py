"""Many events, few calls: a wallet decides in the process from units that it has fetched, and a cache remembers denials until the
server says that they are over."""

import os

import redis
from redis_rl import Fixed, Limits, Slide

with Limits(redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))) as limits:
    # At most 100 000 events of a site in any hour. A process fetches 100 of them at once, and gives back what it does not use.
    with limits.wallet(limits.limit("events", Slide("100000/h")), batch=100) as events:
        print(sum(events.take("site-1").granted for _ in range(250)), "events recorded")

    # A client that goes on calling although it is denied costs no calls of the server.
    logins = limits.cached(limits.limit("login", Fixed("5/h")))
    print(sum(logins.take("10.0.0.1").granted for _ in range(1000)), "attempts let through")
    logins.close()
