"""How many decisions a second the package makes: by a call to the server, from a denial that it repeats, and from a wallet.

`python benchmark.py URL SECONDS` prints one round as JSON. `make bench PART=clients` runs it."""

import json
import sys
import time

import redis
from redis_rl import Fixed, Limits

PERIOD = 86_400


def rate(decide, at_once: int, seconds: float) -> float:
    """Decisions a second; the clock is read after each `at_once` of them."""
    count = 0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for _ in range(at_once):
            decide()
        count += at_once
    return count / passed


def main(url: str, seconds: float) -> None:
    with Limits(redis.Redis.from_url(url), repeat_denials=1) as limits:
        many = limits.limit("bench", Fixed(f"1000000000000/{PERIOD}s"))
        few = limits.limit("few", Fixed(f"1/{PERIOD}s"))
        wallet = limits.wallet(many, batch=1_000_000_000)

        def granted() -> None:
            assert wallet.take("user:1").allowed

        def denied() -> None:
            assert not few.take("user:1").allowed

        # The first calls connect, fetch the batch, and are granted the only unit of the other limit.
        few.take("user:1")
        for _ in range(1_000):
            many.take("user:2")
            granted()
            denied()
        rates = {
            "round_trip": rate(lambda: many.take("user:2"), 20, seconds),
            "denied": rate(denied, 500, seconds),
            "wallet": rate(granted, 500, seconds),
        }
        wallet.close()
    print(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
