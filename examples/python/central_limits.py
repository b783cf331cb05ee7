"""Limits that an operator changes for all processes at once, over redis-py. No process restarts. The policies are the fields of
a hash on the server:

    HSET limits api "GCRA 10 1m BURST 20"

    limits = CentralLimits(redis.Redis(retry=None), {"api": "GCRA 10 1m BURST 20"})
    granted, limit, remaining, wait_ms, reset_ms = limits.take("api", "user:42")

Each process keeps a copy of the policies. A call that finds the copy older than `every` seconds first reads the hash again,
with one HGETALL, while other threads go on with the copy. So there is no thread and no subscription: no change is missed while
a connection is down, a process may fork, and an idle process reads nothing.

The server itself checks a new policy, by RL.PEEK, before it is used. If a policy is missing or malformed, or the hash can't be
read, the last good policy stays in force, and the reason is logged once. Before the first good one, the default that the
program names is in force.

While some processes have the new policy and others still the old one, the server grants no more than the policy with the higher
rate allows, if the capacity (BURST, CAPACITY) stays: docs/operations.md has the exact bound.

The key is `limit:NAME:ALGORITHM:KEY`. It contains the algorithm, because a key can't change its algorithm.
"""

import logging
import threading
import time

import redis

log = logging.getLogger(__name__)

ALGORITHMS = ("FIXED", "SLIDE", "GCRA", "BUCKET")


def text_of(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class CentralLimits:
    """`defaults` are the policies by name, until the hash names others. Raises the errors of redis-py."""

    def __init__(self, client, defaults, source="limits", every=1.0):
        self.client = client
        self.source = source
        self.every = every
        self.policies = {name: policy.split() for name, policy in defaults.items()}
        self.stored = set()  # The names that the hash has had.
        self.logged = {}  # What was logged last, by name.
        self.reading = threading.Lock()
        self.refresh()

    def take(self, name, key, *options):
        """Takes one unit, or what `options` say, such as "COST", 5. Returns the five integers of the reply."""
        if time.monotonic() >= self.due and self.reading.acquire(blocking=False):
            try:
                self.refresh()
            finally:
                self.reading.release()
        algorithm, *policy = self.policies[name]
        return self.client.execute_command(f"RL.{algorithm}", self._key(name, algorithm, key), *policy, *options)

    def refresh(self):
        """Reads the hash, and takes over the policies that have changed."""
        self.due = time.monotonic() + self.every
        try:
            fields = self.client.hgetall(self.source)
        except (redis.RedisError, UnicodeDecodeError) as error:
            return self._log(None, f"the policies in {self.source} can't be read, and stay as they are: {error}")
        self._log(None, None)
        fields = {text_of(name): text_of(policy) for name, policy in fields.items()}
        policies = dict(self.policies)
        for name, policy in fields.items():
            words = policy.split()
            if words != policies.get(name):
                error = self._error_in(name, words)
                if error:
                    self._log(name, f"the policy {policy!r} of {name} is not used: {error}")
                    continue
                log.info("the policy of %s is now %s", name, policy)
                policies[name] = words
            self._log(name, None)
        for name in self.stored - fields.keys():
            self._log(name, f"{self.source} has no policy of {name} any more; the last one stays: {' '.join(policies[name])}")
        self.stored |= fields.keys() & policies.keys()
        self.policies = policies

    def _error_in(self, name, words):
        """Why this policy can't be used; None if it can."""
        if not words or words[0].upper() not in ALGORITHMS:
            return f"it must begin with {', '.join(ALGORITHMS)}"
        try:
            # With COST, because a policy names no amount. The call reads, and writes nothing.
            self.client.execute_command("RL.PEEK", words[0], self._key(name, words[0], ""), *words[1:], "COST", 1)
        except redis.RedisError as error:
            return error

    def _key(self, name, algorithm, key):
        return f"limit:{name}:{algorithm.lower()}:{key}"

    def _log(self, name, message):
        """Logs a message about a name, unless it was the last one about it."""
        if message and self.logged.get(name) != message:
            log.error("%s", message)
        self.logged[name] = message
