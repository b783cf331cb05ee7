"""Quotas per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning, or on the first of
the month, also when the clocks change. On Windows the package tzdata brings the time zones."""

import os

import redis
from redis_rl import Fixed, Limits


class Quota:
    def __init__(self, limits: Limits, unit: str, units: int, zone: str):
        # The unit is a part of the name, because windows of different lengths need different keys.
        self.limit = limits.limit(f"quota-{unit}", Fixed(f"{units}/{unit}", zone=zone))

    def take(self, key: str, cost: int = 1):
        return self.limit.take(key, cost)


if __name__ == "__main__":
    limits = Limits(redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost")))
    quota = Quota(limits, "month", 10_000, "Europe/Berlin")
    decision = quota.take("customer:42")
    if decision:
        print(decision.remaining, "are left")
    else:
        print("The quota is used up. It is full again in", decision.reset, "seconds.")
