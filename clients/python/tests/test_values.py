"""What needs no server: rates, durations, policies, names and headers of clients/behaviour.json."""

import datetime
import email.message
import pathlib
import random
import types
import urllib.error

import pytest
import redis
import redis.asyncio
import requests

import redis_rl
from redis_rl import Bucket, Fixed, Gcra, InvalidLimit, Lease, Slide
from redis_rl._decision import decision_of
from redis_rl._policy import _duration_us, _period_us, us_text
from redis_rl._responses import asked_pause
from helpers import limits_of
from table import TABLE, error_of, key_of, policy_of, response_of


def ids(rows, name):
    return [str(row[name])[:60] for row in rows]


@pytest.mark.parametrize("row", TABLE["rates"], ids=ids(TABLE["rates"], "rate"))
def test_rates(row):
    if "error" in row:
        with pytest.raises(error_of(row["error"])):
            Fixed(row["rate"])
    else:
        policy = Fixed(row["rate"])
        assert (policy.limit, policy.period_us, policy.rate) == (row["limit"], row["period_us"], row["text"])
        assert Fixed(policy.rate) == policy


@pytest.mark.parametrize("row", TABLE["durations"], ids=ids(TABLE["durations"], "duration"))
def test_durations(row):
    if "error" in row:
        with pytest.raises(error_of(row["error"])):
            Lease(1, row["duration"])
    else:
        policy = Lease(1, row["duration"])
        assert (policy.period_us, policy.ttl, us_text(policy.period_us)) == (row["us"], row["us"] / 1e6, row["text"])
        assert _period_us(datetime.timedelta(microseconds=row["us"]), "ttl") == row["us"]


@pytest.mark.parametrize("row", TABLE["policies"], ids=ids(TABLE["policies"], "policy"))
def test_policies(row):
    if "error" in row:
        with pytest.raises(error_of(row["error"])):
            policy_of(row["policy"])
        return
    policy = policy_of(row["policy"])
    if "command" in row:
        assert policy.command("k") == row["command"]
        assert policy.command(b"k", "COST", "2") == [row["command"][0], b"k", *row["command"][2:], "COST", "2"]
        assert policy.capacity == row["capacity"]
    if "equals" in row:
        assert policy == policy_of(row["equals"]) and hash(policy) == hash(policy_of(row["equals"]))
    if "differs" in row:
        assert policy != policy_of(row["differs"])
    # The readable form makes the same policy.
    assert eval(repr(policy), vars(redis_rl)) == policy


@pytest.mark.parametrize("row", TABLE["names"], ids=ids(TABLE["names"], "name"))
@pytest.mark.parametrize("client", [redis.Redis, redis.asyncio.Redis])
def test_names(row, client):
    limits = limits_of(client(), prefix=row["prefix"])
    if "error" in row:
        with pytest.raises(error_of(row["error"])):
            limits.limit(row["name"], Fixed("1/s"))
    else:
        assert limits.limit(row["name"], Fixed("1/s"))._full_key(key_of(row["key"])) == row["on_the_server"].encode()


def decision(row):
    return decision_of(row["reply"], policy_of(row["policy"]), row["name"])


def of_requests(status, headers):
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    return response


def of_urllib(status, headers):
    message = email.message.Message()
    for name, text in headers.items():
        message[name] = text
    return urllib.error.HTTPError("http://partner", status, "", message, None)


RESPONSES = {
    "httpx": lambda status, headers: response_of({"status": status, "headers": headers}),
    "requests": of_requests,
    "urllib": of_urllib,
}


@pytest.mark.parametrize("row", TABLE["responses"], ids=ids(TABLE["responses"], "about"))
@pytest.mark.parametrize("kind", RESPONSES)
def test_responses(kind, row):
    found = asked_pause(RESPONSES[kind](row["status"], row["headers"]), row["now"])
    assert found >= 31 * 86_400 if row["seconds"] == "most" else found == pytest.approx(row["seconds"])


def test_no_header_raises_an_error():
    words = ['"', "\\", ",", ";", "=", " ", "r=0", "t=", "9" * 30, "Mon, ", "31 Feb 2026", " 00:00:00 ", "GMT", "+9999", "-", ":", "x", "\0", "é"]
    choice = random.Random(1).choices
    names = ["Retry-After", "RateLimit", "X-RateLimit-Reset", "X-RateLimit-Remaining"]
    for length in range(5_000):
        headers = {name: "".join(choice(words, k=length % 9)) for name in names}
        assert asked_pause(types.SimpleNamespace(status=429, headers=headers), 1_790_000_000) >= 0


@pytest.mark.parametrize("row", TABLE["headers"], ids=ids(TABLE["headers"], "about"))
def test_headers(row):
    assert decision(row).headers() == row["headers"]
    assert list(decision(row).headers()) == list(row["headers"])


@pytest.mark.parametrize("row", TABLE["joined_headers"], ids=ids(TABLE["joined_headers"], "about"))
def test_headers_of_several(row):
    assert redis_rl.headers(map(decision, row["decisions"])) == row["headers"]


def test_a_decision():
    granted = decision_of([1, 10, 9, 0, 6001], Gcra("10/m"), "api")
    assert granted and granted.allowed and granted.source == "server" and granted.raise_if_denied() is granted
    assert (granted.wait, granted.reset, granted.policy, granted.name) == (0, 6.001, Gcra("10/m"), "api")
    denied = decision_of([0, 10, 0, 1500, 6001], Gcra("10/m"), "api")
    assert not denied and denied.wait == 1.5
    with pytest.raises(redis_rl.RateLimited, match="api: the limit is reached; retry in 1.5 s") as raised:
        denied.raise_if_denied()
    assert raised.value.retry_after == 1.5 and raised.value.headers() == denied.headers()
    never = decision_of([0, 10, 0, -1, 6001], Gcra("10/m"), "api")
    assert never.wait is None and never.wait_ms is None


@pytest.mark.parametrize(
    "reply", [None, 1, [], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, b"5"], [1, 2, 3, 4, None], "OK", {}]
)
def test_a_reply_of_another_shape(reply):
    with pytest.raises(redis_rl.UnexpectedReply):
        decision_of(reply, Gcra("10/m"), "api")


@pytest.mark.parametrize("make", [Fixed, Slide, Gcra, Bucket])
@pytest.mark.parametrize("rate", [None, 10, 1.5, b"10/m", ("10", "m")])
def test_a_rate_is_text(make, rate):
    with pytest.raises(InvalidLimit):
        make(rate)


def test_what_is_no_client_or_policy():
    with pytest.raises(TypeError, match="a Redis or a RedisCluster"):
        limits_of("localhost")
    with pytest.raises(TypeError, match="use AsyncLimits"):
        redis_rl.Limits(redis.asyncio.Redis())
    with pytest.raises(TypeError, match="use Limits"):
        redis_rl.AsyncLimits(redis.Redis())
    for wrong in (
        {"on_down": "ajar"},
        {"on_down": Fixed("1/s")},
        {"timeout": 0},
        {"connect_timeout": "soon"},
        {"repeat_denials": 1.1},
        {"max_connections": 0},
        {"prefix": b"x"},
    ):
        with pytest.raises(InvalidLimit):
            limits_of(redis.Redis(), **wrong)
    with pytest.raises(InvalidLimit):
        limits_of(redis.Redis()).limit("api", "10/m")


def test_waits_are_rounded_up():
    assert _duration_us(0.0000001, "a wait", redis_rl.InvalidWait, up=True) == 1
    assert [us_text(us) for us in (1, 1_500, 60_000_000, 5_400_000_000)] == ["1us", "1500us", "1m", "90m"]


@pytest.mark.parametrize("row", TABLE["calendar"], ids=[f"{row['zone']} {row['now']}" for row in TABLE["calendar"]])
def test_the_calendar(row):
    policy = Fixed(f"5/{row['period']}", zone=row["zone"])
    assert policy.window(row["now"]) == (row["starts"], row["ends"])
    assert policy.command("k", now=row["now"]) == row["command"]
    asked = decision_of([1, 5, 4, 0, 1000], policy, "api", policy.window_us(row["now"]))
    assert asked.headers()["RateLimit-Policy"] == row["headers"]["RateLimit-Policy"]


def test_the_errors_of_rates_list_the_units():
    with pytest.raises(InvalidLimit, match="us, ms, s, sec, .* days"):
        Fixed("10/fortnight")


@pytest.mark.parametrize(
    ("address", "key"),
    [
        *((row["address"], row["key"]) for row in TABLE["addresses"]),
        ("fe80::1%eth0", "address:fe80::/64"),
        ("unknown", "address:unknown"),
    ],
)
def test_the_key_of_an_address(address, key):
    assert redis_rl.address_key(address) == key


def test_the_names_of_the_package_are_those_of_the_table():
    """A policy, its base and the classes that make blocks are not in the table of clients/README.md by their names."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()
    bases = {"Policy", "RatePolicy", "AllDecision", "Decision", "Limit", "LeaseLimit", "Wallet"}
    for name in redis_rl.__all__:
        assert name.removeprefix("Async") in text or name.removeprefix("Async") in bases, name
