"""Quotas per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning, or on the first of
the month, also when the clocks change. Windows needs the package tzdata for zoneinfo."""

import os
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import redis
from redis_rl import Fixed, Limits

# The longest that each window can be, and one hour more, because a clock may be fast. A day has up to 25 hours. In zones where the
# clocks go back in October, October has 31 days and one hour.
PERIODS = {"day": "26h", "week": "170h", "month": "746h"}


def next_date(unit: str, today: date) -> date:
    """The first day of the next day, week or month."""
    if unit == "day":
        return today + timedelta(days=1)
    if unit == "week":
        return today + timedelta(days=7 - today.weekday())
    return (today.replace(day=1) + timedelta(days=32)).replace(day=1)


def end_of(unit: str, zone: ZoneInfo, now: datetime) -> datetime:
    """When the day, week or month that holds `now` ends in this time zone."""
    first = next_date(unit, now.astimezone(zone).date())
    # Where the clocks go forward at midnight, this is the moment at which they do.
    return datetime(first.year, first.month, first.day, tzinfo=zone)


class Quota:
    def __init__(self, limits: Limits, unit: str, units: int, zone: str):
        self.limit = limits.limit(f"quota:{unit}", Fixed(f"{units}/{PERIODS[unit]}"))
        self.unit, self.zone = unit, ZoneInfo(zone)

    def take(self, key: str, cost: int = 1):
        return self.limit.until(key, end_of(self.unit, self.zone, datetime.now(self.zone)), cost)


if __name__ == "__main__":
    limits = Limits(redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost")))
    quota = Quota(limits, "month", 10_000, "Europe/Berlin")
    decision = quota.take("customer:42")
    if decision:
        print(decision.remaining, "are left")
    else:
        print("The quota is used up. It is full again in", decision.reset, "seconds.")
