"""Policies: values that need no connection. They are checked when they are made, by the rules of the server."""

from __future__ import annotations

import datetime
import math
import re
import time
import uuid
import zoneinfo
from collections.abc import Callable, Iterable
from typing import ClassVar, Generic, TypeVar, Union

from ._errors import InvalidArgument, InvalidCost, InvalidId, InvalidKey, InvalidLimit, InvalidWait

Duration = Union[int, float, str, datetime.timedelta]
Key = Union[str, bytes, int]
Id = Union[str, bytes]
Word = Union[str, bytes, int]

MAX_UNITS = 1_000_000_000_000
MAX_SLIDE = 4_294_967_295
MAX_LEASE = 65_536
MIN_PERIOD_US = 1_000
MAX_PERIOD_US = 3650 * 86_400 * 1_000_000
MAX_WAIT_US = 86_400 * 1_000_000
MAX_POLICIES = 16
MAX_PAUSE_US = 31 * 86_400 * 1_000_000
_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_NAMES = {
    name: names.split()[0]
    for names in ("us", "ms", "s sec second seconds", "m min minute minutes", "h hr hour hours", "d day days")
    for name in names.split()
}
_PERIOD = re.compile(rf"(?:([0-9]+)(?:\.([0-9]+))? ?)?({'|'.join(_NAMES)})", re.IGNORECASE)
_RATE = re.compile(r"([0-9]+)/(.+)")
_HINT = f"the units of time are {', '.join(_NAMES)}"


def _text_us(text: str) -> int | None:
    """The microseconds of a text such as `90s`, `1.5h` or `m`. None if it is no such text, or not exact to the
    microsecond."""
    match = _PERIOD.fullmatch(text)
    if match is None:
        return None
    whole, decimals, unit = match.groups()
    decimals = decimals or ""
    us, rest = divmod(int((whole or "1") + decimals) * _UNITS[_NAMES[unit.lower()]], 10 ** len(decimals))
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
        us = _text_us(re.sub("^[-+]", "", value) if signed else value)
        if us is not None and signed and value.startswith("-"):
            us = -us
    elif isinstance(value, datetime.timedelta):
        us = value // datetime.timedelta(microseconds=1)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        us = math.ceil(value * 1_000_000) if up else round(value * 1_000_000)
    if us is None:
        raise error(f"{what} is a number of seconds, or a text such as '30s', '250ms' or '1.5h', not {value!r}; {_HINT}")
    return us


def _between(
    value: object, what: str, low: float, high: float, names: str, error: type[InvalidArgument], *, up: bool = True
) -> int:
    """The microseconds of a duration within these bounds, which have these names."""
    us = _duration_us(value, what, error, up=up)
    if not low <= us <= high:
        raise error(f"{what} is from {names}, not {value!r}")
    return us


def _period_us(value: object, what: str) -> int:
    return _between(value, what, MIN_PERIOD_US, MAX_PERIOD_US, "1ms to 3650d", InvalidLimit, up=False)


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
    return _between(wait, "a wait", 0, MAX_WAIT_US, "0 to a day", InvalidWait)


def checked_pause(pause: object) -> int:
    """The microseconds of a pause."""
    return _between(pause, "a pause", MIN_PERIOD_US, MAX_PAUSE_US, "1ms to 31d", InvalidWait)


def checked_key(key: object) -> bytes:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key).encode()
    if isinstance(key, (bytes, str)) and key:
        try:
            return key if isinstance(key, bytes) else key.encode()
        except UnicodeEncodeError:
            pass
    raise InvalidKey(f"a key is text, bytes or an integer, and not empty, not {key!r}")


def checked_id(id: object) -> Id:
    if isinstance(id, (bytes, str)):
        try:
            if 1 <= len(id if isinstance(id, bytes) else id.encode()) <= 64:
                return id
        except UnicodeEncodeError:
            pass
    raise InvalidId(f"an id is text or bytes, 1 to 64 bytes long, not {id!r}")


def new_id() -> Id:
    return uuid.uuid4().hex


def checked_name(name: object) -> str:
    if isinstance(name, str) and name and name.isascii() and name.isprintable() and ":" not in name:
        return name
    raise InvalidLimit(f"the name of a limit is printable ASCII text without a colon, and not empty, not {name!r}")


def checked_seconds(value: object, what: str, low: float, high: float) -> float:
    """The seconds of a setting."""
    names = f"{low:g} to {high:g} seconds"
    return _between(value, what, low * 1_000_000, high * 1_000_000, names, InvalidLimit) / 1_000_000


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

    __slots__ = ("limit", "capacity", "period_us", "_options", "_shown")

    def __init__(self, limit: int, capacity: int | None, period_us: int, options: tuple[str, ...], shown: str) -> None:
        self.limit = limit
        # The highest value that `remaining` can have.
        self.capacity = limit if capacity is None or limit == 0 else capacity
        self.period_us = period_us
        self._options = options
        self._shown = shown

    def rule(self, now: float | None = None) -> tuple[str, ...]:
        """The policy as RL.ALL and RL.PEEK want it, at this Unix time."""
        return (self.algorithm, str(self.limit), us_text(self.period_us), *self._options)

    @property
    def default(self) -> Policy:
        """What serves without a policy key: the policy itself, unless it is a Named."""
        return self

    def command(self, key: Key, *more: Word, now: float | None = None, call: bytes = b"") -> list[Word]:
        """The command that takes a unit, or with `more` arguments what they say. `call` is the key of the call."""
        algorithm, *words = self.rule(now)
        return [f"RL.{algorithm}", key, *words, *more]

    def window_us(self, now: float) -> int:
        """How long the window is that holds this Unix time."""
        return self.period_us

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"


def _rate(rate: object, highest: int = MAX_UNITS) -> tuple[int, int, str]:
    """The units and the microseconds of a rate, and its shortest form."""
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or _text_us(match[2]) is None:
        raise InvalidLimit(f"a rate is a text such as '10/m', '100/15m' or '2/250ms', not {rate!r}; {_HINT}")
    us = _period_us(match[2], "the period of a rate")
    limit, period = _limit(match[1], highest), us_text(us)
    return limit, us, f"{limit}/{period[1:] if period[0] == '1' and not period[1].isdigit() else period}"


def _limit(text: str, highest: int) -> int:
    # Python refuses to convert thousands of digits.
    if len(text) > 100 or int(text) > highest:
        raise InvalidLimit(f"the units of a rate are at most {highest}, not {text[:100]}")
    return int(text)


class RatePolicy(Policy):
    """The base of the policies with a rate: all but Lease."""

    __slots__ = ("rate",)

    def __init__(self, rate: tuple[int, int, str], capacity: int | None = None, /, **options: int | str | None) -> None:
        """Each option that is not None is one of the command, but for `zone`."""
        limit, period_us, self.rate = rate
        shown, words = f'"{self.rate}"', []
        for name, value in options.items():
            if value is None:
                continue
            shown += f', {name}="{value}"' if isinstance(value, str) else f", {name}={value}"
            if name != "zone":
                words += [name.upper()] if value is True else [name.upper(), str(value)]
        super().__init__(limit, capacity, period_us, tuple(words), shown)


def _number(value: object, what: str, most: int) -> int | None:
    return None if value is None else _units(value, what, 1, most, InvalidLimit)


# For each unit of the calendar: its names, and the longest that a window can be and one hour more, so that a fast clock ends none
# early.
_CALENDAR = {"d": ("d day days", 26), "week": ("week", 170), "month": ("month", 746)}


class Fixed(RatePolicy):
    """A fixed window. With `align`, windows start at the multiples of the period since 1970 (UTC), shifted by this
    duration, which may be negative. With `zone`, the name of a time zone, windows are days, weeks or months there."""

    algorithm = "FIXED"
    __slots__ = ("aligned", "_unit", "_zone")

    def __init__(self, rate: str, align: Duration | None = None, zone: str | None = None) -> None:
        self.aligned, self._unit = align is not None or zone is not None, ""
        if zone is not None:
            if align is not None:
                raise InvalidLimit("align and zone can't be combined")
            super().__init__(self._of_calendar(rate, zone), zone=zone)
            return
        parsed, text = _rate(rate), None
        if align is not None:
            us = _duration_us(align, "align", InvalidLimit, signed=True)
            if abs(us) >= parsed[1]:
                raise InvalidLimit(f"align is less than the period, not {align!r}")
            text = f"-{us_text(-us)}" if us < 0 else us_text(us)
        super().__init__(parsed, align=text)

    def _of_calendar(self, rate: object, zone: object) -> tuple[int, int, str]:
        try:
            self._zone = zoneinfo.ZoneInfo(zone)  # type: ignore[arg-type]
        except (zoneinfo.ZoneInfoNotFoundError, TypeError, ValueError, OSError) as error:
            raise InvalidLimit(f"zone is a name of the IANA time zone database, not {zone!r}: {error}") from None
        match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
        for unit, (names, hours) in _CALENDAR.items():
            if match and match[2].lower() in names.split():
                self._unit, limit = unit, _limit(match[1], MAX_UNITS)
                return limit, hours * _UNITS["h"], f"{limit}/{unit}"
        raise InvalidLimit(f"with zone, a rate is a text such as '10/d', '10/week' or '10/month', not {rate!r}")

    def window(self, now: float) -> tuple[int, int]:
        """When the window of the calendar begins and ends that holds this Unix time."""
        first = datetime.datetime.fromtimestamp(now, self._zone).date()
        if self._unit == "d":
            after = first + datetime.timedelta(1)
        elif self._unit == "week":
            first -= datetime.timedelta(first.weekday())
            after = first + datetime.timedelta(7)
        else:
            first = first.replace(day=1)
            after = (first + datetime.timedelta(31)).replace(day=1)
        # Where the clocks go forward at midnight, this is the moment at which they do.
        midnight = datetime.time(tzinfo=self._zone)
        begins, ends = (int(datetime.datetime.combine(day, midnight).timestamp()) for day in (first, after))
        return begins, ends

    def rule(self, now: float | None = None) -> tuple[str, ...]:
        if not self._unit:
            return super().rule()
        return (*super().rule(), "UNTIL", str(self.window(time.time() if now is None else now)[1]))

    def window_us(self, now: float) -> int:
        if not self._unit:
            return self.period_us
        begins, ends = self.window(now)
        return (ends - begins) * 1_000_000


class Slide(RatePolicy):
    """A sliding window, which is exact. `segments` is the resolution of its log, from 1 to 65536."""

    algorithm = "SLIDE"
    __slots__ = ()

    def __init__(self, rate: str, segments: int | None = None) -> None:
        super().__init__(_rate(rate, MAX_SLIDE), segments=_number(segments, "segments", 65_536))


class Gcra(RatePolicy):
    """Evenly spaced units: one comes back every period / limit. `burst` is how many may be taken at once, by default the
    limit."""

    algorithm = "GCRA"
    __slots__ = ()

    def __init__(self, rate: str, burst: int | None = None) -> None:
        parsed, burst = _rate(rate), _number(burst, "burst", MAX_UNITS)
        super().__init__(parsed, burst, burst=burst)


class Bucket(RatePolicy):
    """A token bucket. It holds `capacity` tokens, by default the limit. With `step`, all tokens of a period come at its
    end."""

    algorithm = "BUCKET"
    __slots__ = ()

    def __init__(self, rate: str, capacity: int | None = None, step: bool = False) -> None:
        parsed, capacity = _rate(rate), _number(capacity, "capacity", MAX_UNITS)
        super().__init__(parsed, capacity, capacity=capacity, step=True if step else None)


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


D = TypeVar("D", bound=Union[RatePolicy, Lease], covariant=True)


class Use(list[Word]):
    """The words of a call that names its policy, and of the one to send instead if none of the policy keys exists."""

    def __init__(self, words: Iterable[Word], default: list[Word]) -> None:
        super().__init__(words)
        self.default = default


class Named(Policy, Generic[D]):
    """What the policy key of this name on the server says, which an operator sets by RL.POLICY. `default`, a policy of
    another type, serves while there is none, and says whether the limit is a Lease. `overrides` is a function of the call's
    key, as text, that returns the names of policy keys that come before this one: the first that exists counts. In a cluster,
    all of them need the hash tag of the call's key."""

    __slots__ = ("_default", "_name", "_overrides")

    def __init__(
        self, name: str | bytes, default: D, overrides: Callable[[str], Iterable[str | bytes]] | None = None
    ) -> None:
        if not isinstance(default, (RatePolicy, Lease)):
            raise InvalidLimit(f"the default of a Named is a Fixed, Slide, Gcra, Bucket or Lease, not {default!r}")
        if overrides is not None and not callable(overrides):
            raise InvalidLimit(f"overrides is a function of the call's key, not {overrides!r}")
        self._default, self._name, self._overrides = default, checked_key(name), overrides
        shown = f"{name!r}, {default!r}" + (f", overrides={overrides!r}" if overrides else "")
        super().__init__(default.limit, default.capacity, default.period_us, (), shown)

    @property
    def default(self) -> D:
        """What serves while no policy key exists."""
        return self._default

    def rule(self, now: float | None = None) -> tuple[str, ...]:
        raise InvalidLimit(f"a Named limit can't do this, as the server knows its rule, and the call has to state it: {self!r}")

    def command(self, key: Key, *more: Word, now: float | None = None, call: bytes = b"") -> list[Word]:
        # A key that is no UTF-8 text comes back as the same bytes.
        names = self._overrides(call.decode(errors="surrogateescape")) if self._overrides else ()
        if isinstance(names, (str, bytes)) or len(names := [*names, self._name]) > MAX_POLICIES:
            raise InvalidLimit(f"overrides returns a list of at most {MAX_POLICIES - 1} names, not {names!r:.200}")
        keys = [name.encode(errors="surrogateescape") if isinstance(name, str) else checked_key(name) for name in names]
        return Use(["RL.USE", key, len(keys), *keys, *more], self._default.command(key, *more, now=now))
