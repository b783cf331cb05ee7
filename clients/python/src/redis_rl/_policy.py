"""Policies: values that need no connection. They are checked when they are made, by the rules of the server."""

from __future__ import annotations

import datetime
import math
import re
from typing import ClassVar, Union

from ._errors import InvalidArgument, InvalidCost, InvalidId, InvalidKey, InvalidLimit, InvalidWait

Duration = Union[int, float, str, datetime.timedelta]
Key = Union[str, bytes]
Word = Union[str, bytes]

MAX_UNITS = 1_000_000_000_000
MAX_SLIDE = 4_294_967_295
MAX_LEASE = 65_536
MIN_PERIOD_US = 1_000
MAX_PERIOD_US = 3650 * 86_400 * 1_000_000
MAX_WAIT_US = 86_400 * 1_000_000
_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_PERIOD = re.compile(r"(?:([0-9]+)(?:\.([0-9]+))?)?(us|ms|s|m|h|d)", re.IGNORECASE)
_RATE = re.compile(r"([0-9]+)/(.+)")


def _text_us(text: str) -> int | None:
    """The microseconds of a text such as `90s`, `1.5h` or `m`. None if it is no such text, or not exact to the
    microsecond."""
    match = _PERIOD.fullmatch(text)
    if match is None:
        return None
    whole, decimals, unit = match.groups()
    decimals = decimals or ""
    us, rest = divmod(int((whole or "1") + decimals) * _UNITS[unit.lower()], 10 ** len(decimals))
    return None if rest else us


def us_text(us: int) -> str:
    """A duration in the largest unit that divides it."""
    if us == 0:
        return "0s"
    unit = next(unit for unit, size in _UNITS.items() if us % size == 0)
    return f"{us // _UNITS[unit]}{unit}"


def _duration_us(value: object, what: str, error: type[InvalidArgument], *, up: bool = False, signed: bool = False) -> int:
    """The microseconds of a duration; `up` rounds a float up, which else is rounded to the nearest."""
    us: int | None = None
    if isinstance(value, str):
        sign = -1 if signed and value.startswith("-") else 1
        text = value[1:] if signed and value[:1] in ("-", "+") and value else value
        us = _text_us(text)
        us = us if us is None else sign * us
    elif isinstance(value, datetime.timedelta):
        us = value // datetime.timedelta(microseconds=1)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        us = math.ceil(value * 1_000_000) if up else round(value * 1_000_000)
    if us is None:
        raise error(f"{what} is a number of seconds, or a text such as '30s', '250ms' or '1.5h', not {value!r}")
    return us


def _period_us(value: object, what: str) -> int:
    us = _duration_us(value, what, InvalidLimit)
    if not MIN_PERIOD_US <= us <= MAX_PERIOD_US:
        raise InvalidLimit(f"{what} is from 1ms to 3650d, not {value!r}")
    return us


def _units(value: object, what: str, low: int, high: int, error: type[InvalidArgument]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise error(f"{what} is a whole number from {low} to {high}, not {value!r}")
    return value


def checked_cost(cost: object, low: int = 1) -> int:
    return _units(cost, "the number of units", low, MAX_UNITS, InvalidCost)


def checked_wait(wait: object) -> int:
    """The microseconds of a wait; 0 if there is none."""
    if wait is None:
        return 0
    us = _duration_us(wait, "a wait", InvalidWait, up=True)
    if not 0 <= us <= MAX_WAIT_US:
        raise InvalidWait(f"a wait is from 0 to a day, not {wait!r}")
    return us


def checked_key(key: object) -> bytes:
    if isinstance(key, (bytes, str)) and key:
        try:
            return key if isinstance(key, bytes) else key.encode()
        except UnicodeEncodeError:
            pass
    raise InvalidKey(f"a key is text or bytes, and not empty, not {key!r}")


def checked_id(id: object) -> bytes:
    if isinstance(id, (bytes, str)):
        try:
            raw = id if isinstance(id, bytes) else id.encode()
        except UnicodeEncodeError:
            raw = b""
        if 1 <= len(raw) <= 64:
            return raw
    raise InvalidId(f"an id is text or bytes, 1 to 64 bytes long, not {id!r}")


def checked_name(name: object) -> str:
    if isinstance(name, str) and name and name.isascii() and name.isprintable():
        return name
    raise InvalidLimit(f"the name of a limit is printable ASCII text, and not empty, not {name!r}")


def checked_until(time: object) -> str:
    """A Unix time in seconds, with at most six decimals."""
    if isinstance(time, datetime.datetime):
        if time.tzinfo is None:
            raise InvalidLimit(f"a datetime needs a time zone: {time!r}")
        time = time.timestamp()
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time) or time < 0:
        raise InvalidLimit(f"a time is a Unix time in seconds or a datetime, not {time!r}")
    return f"{time:.6f}" if isinstance(time, float) else str(time)


class Policy:
    """The base of the policies. Two policies are equal if the server treats them alike because their arguments are the
    same."""

    algorithm: ClassVar[str]

    __slots__ = ("limit", "capacity", "period_us", "_words", "_shown")

    def __init__(self, limit: int, capacity: int | None, period_us: int, options: tuple[str, ...], shown: str) -> None:
        self.limit = limit
        # The highest value that `remaining` can have.
        self.capacity = limit if capacity is None or limit == 0 else capacity
        self.period_us = period_us
        self._words = (str(limit), us_text(period_us), *options)
        self._shown = shown

    def command(self, key: Key, *more: Word) -> list[Word]:
        """The command that takes a unit, or with `more` arguments what they say."""
        return [f"RL.{self.algorithm}", key, *self._words, *more]

    def rule(self) -> tuple[str, ...]:
        """The policy as RL.ALL and RL.PEEK want it."""
        return (self.algorithm, *self._words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.rule() == other.rule()

    def __hash__(self) -> int:
        return hash(self.rule())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"


def _rate(rate: object, highest: int = MAX_UNITS) -> tuple[int, int, str]:
    """The units and the microseconds of a rate, and its shortest form."""
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    us = _text_us(match[2]) if match else None
    if match is None or us is None:
        raise InvalidLimit(f"a rate is a text such as '10/m', '100/15m' or '2/250ms', not {rate!r}")
    limit = int(match[1])
    if limit > highest:
        raise InvalidLimit(f"the units of a rate are at most {highest}, not {limit}")
    if not MIN_PERIOD_US <= us <= MAX_PERIOD_US:
        raise InvalidLimit(f"the period of a rate is from 1ms to 3650d, not {match[2]!r}")
    period = us_text(us)
    return limit, us, f"{limit}/{period[1:] if period[0] == '1' and not period[1].isdigit() else period}"


class RatePolicy(Policy):
    """The base of the policies with a rate: all but Lease."""

    __slots__ = ("rate",)

    def __init__(self, rate: tuple[int, int, str], capacity: int | None, options: tuple[str, ...], shown: str) -> None:
        self.rate = rate[2]
        super().__init__(rate[0], capacity, rate[1], options, f'"{rate[2]}"{shown}')


class Fixed(RatePolicy):
    """A fixed window. With `align`, windows start at the multiples of the period since 1970 (UTC), shifted by this
    duration, which may be negative."""

    algorithm = "FIXED"
    __slots__ = ("aligned",)

    def __init__(self, rate: str, align: Duration | None = None) -> None:
        parsed = _rate(rate)
        self.aligned = align is not None
        if align is None:
            super().__init__(parsed, None, (), "")
            return
        us = _duration_us(align, "align", InvalidLimit, signed=True)
        if abs(us) >= parsed[1]:
            raise InvalidLimit(f"align is less than the period, not {align!r}")
        text = f"-{us_text(-us)}" if us < 0 else us_text(us)
        super().__init__(parsed, None, ("ALIGN", text), f', align="{text}"')


class Slide(RatePolicy):
    """A sliding window, which is exact. `segments` is the resolution of its log, from 1 to 65536."""

    algorithm = "SLIDE"
    __slots__ = ()

    def __init__(self, rate: str, segments: int | None = None) -> None:
        parsed = _rate(rate, MAX_SLIDE)
        if segments is None:
            super().__init__(parsed, None, (), "")
            return
        segments = _units(segments, "segments", 1, 65_536, InvalidLimit)
        super().__init__(parsed, None, ("SEGMENTS", str(segments)), f", segments={segments}")


class Gcra(RatePolicy):
    """Evenly spaced units: one comes back every period / limit. `burst` is how many may be taken at once, by default the
    limit."""

    algorithm = "GCRA"
    __slots__ = ()

    def __init__(self, rate: str, burst: int | None = None) -> None:
        parsed = _rate(rate)
        if burst is None:
            super().__init__(parsed, None, (), "")
            return
        burst = _units(burst, "burst", 1, MAX_UNITS, InvalidLimit)
        super().__init__(parsed, burst, ("BURST", str(burst)), f", burst={burst}")


class Bucket(RatePolicy):
    """A token bucket. It holds `capacity` tokens, by default the limit. With `step`, all tokens of a period come at its
    end."""

    algorithm = "BUCKET"
    __slots__ = ()

    def __init__(self, rate: str, capacity: int | None = None, step: bool = False) -> None:
        parsed = _rate(rate)
        options: tuple[str, ...] = ()
        shown = ""
        if capacity is not None:
            capacity = _units(capacity, "capacity", 1, MAX_UNITS, InvalidLimit)
            options, shown = ("CAPACITY", str(capacity)), f", capacity={capacity}"
        if step:
            options, shown = (*options, "STEP"), f"{shown}, step=True"
        super().__init__(parsed, capacity, options, shown)


class Lease(Policy):
    """At most `limit` units are held at the same time. A lease that is not renewed ends `ttl` after its last renewal."""

    algorithm = "LEASE"
    __slots__ = ("ttl",)

    def __init__(self, limit: int, ttl: Duration) -> None:
        limit = _units(limit, "the limit of a lease", 0, MAX_LEASE, InvalidLimit)
        us = _period_us(ttl, "ttl")
        # In seconds.
        self.ttl = us / 1_000_000
        super().__init__(limit, None, us, (), f'{limit}, "{us_text(us)}"')
