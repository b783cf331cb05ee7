"""Limits per day, week or month of a time zone's calendar, over redis-py: full again at midnight in Berlin, on Monday morning, or
on the first of the month.

    limit = CalendarLimit(redis.Redis(), "month", 10_000, "Europe/Berlin")
    granted, _, remaining, _, reset_ms = limit.take("quota:42")

The calendar is Python's zoneinfo; the server only learns when the window ends. Each call states the end of the day that the
caller's clock shows. A clock that is wrong by seconds does no harm. Do not pass `now`, except in tests.

redis-py repeats a command whose reply is lost. Each call of `take` has a new id, so the server charges a repeated command once.
The key remembers the ids until its window ends, at most 65536 of them, in up to 210 bytes each: 2 MB for 10 000 calls.

Windows needs the package tzdata for zoneinfo.
"""

import uuid
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

# The longest that each window can be, and one hour more, because a clock may be fast. A day has up to 25 hours. In zones where the
# clocks go back in October, October has 31 days and one hour.
PERIODS = {"day": "26h", "week": "170h", "month": "746h"}


def next_date(unit: str, today: date) -> date:
    """The first day of the next day, week or month."""
    if unit == "day":
        return today + timedelta(days=1)
    if unit == "week":
        return today + timedelta(days=7 - today.weekday())
    if unit == "month":
        return (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    raise ValueError(f"unit is day, week or month, not {unit!r}")


def end_of(unit: str, zone: ZoneInfo, now: datetime) -> int:
    """When the day, week or month that holds `now` ends in this time zone, in Unix seconds."""
    first = next_date(unit, now.astimezone(zone).date())
    # Where the clocks go forward at midnight, this is the moment at which they do.
    return int(datetime(first.year, first.month, first.day, tzinfo=zone).timestamp())


class CalendarLimit:
    def __init__(self, client, unit, limit, zone):
        self.client = client
        self.unit = unit
        self.limit = limit
        self.zone = ZoneInfo(zone)

    def take(self, key, units=1, now=None):
        """Takes units, all or none. Returns the reply of RL.FIXED: granted, limit, remaining, wait_ms, reset_ms."""
        end = end_of(self.unit, self.zone, now or datetime.now(self.zone))
        command = ("RL.FIXED", key, self.limit, PERIODS[self.unit], "UNTIL", end, "COST", units, "ID", uuid.uuid4().hex)
        return self.client.execute_command(*command)
