"""Limits that an operator changes for all processes at once, without a restart. The policies are the fields of a hash on the server:

    HSET limits api "GCRA 10 1m BURST 20"

Each process keeps a copy. A call that finds it older than `every` seconds first reads the hash again, with one HGETALL, while
other threads go on with the copy. So no change is missed while a connection is down, a process may fork, and an idle process reads
nothing. The server itself checks a new policy, by RL.PEEK, before it is used. If a policy is missing or malformed, or the hash
can't be read, the last good policy stays in force (at first, the default), and the reason is logged once.

The key is `limit:NAME.ALGORITHM:KEY`. It contains the algorithm, because a key can't change its algorithm."""

import logging
import os
import threading
import time

import redis
from redis_rl import Bucket, Fixed, Gcra, Limits, RateLimitError, Slide

log = logging.getLogger(__name__)
POLICIES = {"FIXED": Fixed, "SLIDE": Slide, "GCRA": Gcra, "BUCKET": Bucket}


def policy_of(text):
    """The policy that a text such as "GCRA 10 1m BURST 20" means. A duration without a unit is in seconds."""
    algorithm, limit, period, *words = text.upper().split()
    options = {}
    while words:
        name = words.pop(0).lower()
        if name == "step":
            options[name] = True
        else:
            options[name] = duration(words.pop(0)) if name == "align" else int(words.pop(0))
    return POLICIES[algorithm](f"{limit}/{duration(period)}", **options)


def duration(text):
    return f"{text}s" if text[-1].isdigit() else text


class CentralLimits:
    def __init__(self, client, defaults, source="limits", every=1.0, **options):
        self.client, self.source, self.every = client, source, every
        self.limits = Limits(client, prefix="limit:", **options)
        self.policies = {name: self.checked(name, text, False) for name, text in defaults.items()}
        self.stored = set()  # The names that the hash has had.
        self.logged = {}  # What was logged last, by name.
        self.reading = threading.Lock()
        self.refresh()

    def __getitem__(self, name):
        """The limit of this name, as it is in force now."""
        if time.monotonic() >= self.due and self.reading.acquire(blocking=False):
            try:
                self.refresh()
            finally:
                self.reading.release()
        return self.policies[name][1]

    def checked(self, name, text, by_server=True):
        policy = policy_of(text)
        limit = self.limits.limit(f"{name}.{policy.algorithm.lower()}", policy)
        if by_server:
            limit.peek("check")
        return text, limit

    def refresh(self):
        """Reads the hash, and takes over the policies that have changed."""
        self.due = time.monotonic() + self.every
        try:
            fields = self.client.hgetall(self.source)
        except (redis.RedisError, UnicodeDecodeError) as error:
            return self.log(None, f"the policies in {self.source} can't be read, and stay as they are: {error}")
        self.log(None, None)
        fields = {text_of(name): text_of(text) for name, text in fields.items()}
        policies = dict(self.policies)
        for name, text in fields.items():
            if name not in policies or text != policies[name][0]:
                try:
                    policies[name] = self.checked(name, text)
                except (RateLimitError, KeyError, TypeError, ValueError, IndexError) as error:
                    self.log(name, f"the policy {text!r} of {name} is not used: {error!r}")
                    continue
                log.info("the policy of %s is now %s", name, text)
            self.log(name, None)
        for name in self.stored - fields.keys():
            self.log(name, f"{self.source} has no policy of {name} any more; the last one stays: {policies[name][0]}")
        self.stored |= fields.keys() & policies.keys()
        self.policies = policies

    def log(self, name, message):
        """Logs a message about a name, unless it was the last one about it."""
        if message and self.logged.get(name) != message:
            log.error("%s", message)
        self.logged[name] = message


def text_of(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    limits = CentralLimits(client, {"api": "GCRA 10 1m BURST 20"})  # until the hash `limits` names another policy of `api`
    decision = limits["api"].take("user:42")
    if decision:
        print(decision.remaining, "are left")
    elif decision.wait is None:
        print("All calls are refused now.")  # the limit is 0
    else:
        print("Try again in", decision.wait, "seconds.")
