"""Reads from the answer of a third party for how long it wants no calls."""

from __future__ import annotations

import datetime
import email.utils
import re
from typing import Any

# Too many requests, and service unavailable.
_STOPS = (429, 503)
# Resets above this are Unix times.
_UNIX = 1_000_000_000
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TEXTS = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)')


def asked_pause(response: Any, now: float) -> float:
    """The seconds from `now`, a Unix time, that the headers of a response ask for; 0 if they ask for none. The response is
    one of requests, httpx, aiohttp or urllib. What is malformed counts as missing."""
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    if status not in _STOPS:
        return 0.0
    fields: dict[str, str] = {}
    for name, value in response.headers.items():
        name, value = str(name).lower(), str(value).strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    after = _number(fields.get("retry-after", ""))
    if after is None:
        after = _date(fields.get("retry-after", ""), now)
    if after is None:
        after = _item(fields.get("ratelimit", ""))
    for start in ("ratelimit", "x-ratelimit", "x-rate-limit"):
        if after is None and _number(fields.get(f"{start}-remaining", "")) == 0:
            after = _number(fields.get(f"{start}-reset", ""))
            if after is not None and after > _UNIX:
                after -= now
    return max(0.0, after or 0.0)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _date(text: str, now: float) -> float | None:
    try:
        date = email.utils.parsedate_to_datetime(text)
        # Without a zone it is one in GMT.
        return (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _item(text: str) -> float | None:
    """The longest `t` of the limits in a field `RateLimit` that have nothing left: `"day";r=0;t=30`."""
    times = []
    for item in _TEXTS.sub("", text).split(","):
        words: dict[str, str] = {}
        for word in item.split(";"):
            name, _, value = word.strip().partition("=")
            words[name] = value
        time = _number(words.get("t", ""))
        if time is not None and _number(words.get("r", "")) == 0:
            times.append(time)
    return max(times, default=None)
