# Made by make_sync.py. Do not change it here.
"""The limits of a client."""

from __future__ import annotations

import os
import time as clock
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, overload

from .._decision import AllDecision, Decision, all_of, decision_of
from .._down import Denials, Down, How, OnDown, log
from .._errors import (
    Closed,
    InvalidCost,
    InvalidKey,
    InvalidLimit,
    LeaseLost,
    RateLimitError,
    Unavailable,
    UnexpectedReply,
)
from .._policy import (
    Duration,
    Fixed,
    Id,
    Key,
    Lease,
    Named,
    Policy,
    RatePolicy,
    Word,
    checked_cost,
    checked_id,
    checked_key,
    checked_name,
    checked_pause,
    checked_seconds,
    checked_until,
    checked_wait,
    new_id,
    us_text,
)
from .._replies import shown
from .._responses import asked_pause
from .._topology import key_slot
from . import _io as io
from ._blocks import Admission, Charge, Guard, Held
from ._connections import Calls
from ._wallet import Wallet

Rule: TypeAlias = "tuple[Limit | LeaseLimit, Key] | tuple[Limit | LeaseLimit, Key, int]"
# When an id that the server did not know is released again: after so many seconds, and after so many more.
AGAIN_S = (0.1, 0.9)
MAX_KEYS = 1024
# All that a process which is forked must forget.
_every: weakref.WeakSet[Limits] = weakref.WeakSet()


class Limits:
    """The limits of one client of redis-py, a Redis or a RedisCluster.

    prefix           what each key on the server begins with
    on_down          what a call without a decision does: "closed" raises Unavailable, "open" lets it through, and a Gcra
                     limits each key in this process
    timeout          how many seconds a reply may take
    connect_timeout  how many seconds a connection may take
    repeat_denials   how many seconds a denial may be repeated without a call, 1 at most
    max_connections  to one server, for calls that do not wait. A call that waits has a connection of its own"""

    def __init__(
        self,
        client: Any,
        prefix: str = "",
        on_down: OnDown = "closed",
        timeout: Duration = 0.25,
        connect_timeout: Duration = 1.0,
        repeat_denials: Duration = 0,
        max_connections: int = 64,
    ) -> None:
        if isinstance(client, io.OTHERS):
            raise TypeError(f"{type(self).__name__} is not for {client!r}: use {io.OTHER}")
        if not isinstance(client, io.CLIENTS):
            raise TypeError(f"a client is a Redis or a RedisCluster of redis-py, not {client!r}")
        if not isinstance(prefix, str):
            raise InvalidLimit(f"the prefix is text, not {prefix!r}")
        if isinstance(max_connections, bool) or not isinstance(max_connections, int) or max_connections < 1:
            raise InvalidLimit(f"max_connections is a whole number from 1, not {max_connections!r}")
        self._client, self._prefix, self._most = client, prefix, max_connections
        self._on_down: OnDown = on_down
        self._timeout = checked_seconds(timeout, "timeout", 0.001, 86_400)
        self._connect_timeout = checked_seconds(connect_timeout, "connect_timeout", 0.001, 86_400)
        self._repeat_denials = checked_seconds(repeat_denials, "repeat_denials", 0, 1)
        self._closed = False
        self._wallets: weakref.WeakSet[Wallet] = weakref.WeakSet()
        self._limits: weakref.WeakSet[_Limited] = weakref.WeakSet()
        self._forget()
        _every.add(self)

    def _forget(self) -> None:
        """Begins anew: in a process that was forked, connections, locks, threads and units belong to its parent."""
        self._down = Down(self._on_down)
        self._of_loop = io.PerLoop(
            lambda: Calls(self._client, self._timeout, self._connect_timeout, self._most, lambda: self._closed)
        )
        for limit in list(self._limits):
            limit._denials = Denials(self._repeat_denials)
        for wallet in list(self._wallets):
            wallet._forget()

    @property
    def _calls(self) -> Calls:
        return self._of_loop.get()

    @property
    def let_through(self) -> int:
        """How many calls `on_down` has let through."""
        return self._down.let_through

    @overload
    def limit(self, name: str, policy: RatePolicy | Named[RatePolicy]) -> Limit: ...
    @overload
    def limit(self, name: str, policy: Lease | Named[Lease]) -> LeaseLimit: ...
    def limit(self, name: str, policy: Policy) -> Limit | LeaseLimit:
        """A limit of this name. The key on the server is the prefix, the name, a colon, and the key of the call."""
        if not isinstance(policy, Policy):
            raise InvalidLimit(f"a policy is a Fixed, Slide, Gcra, Bucket, Lease or Named, not {policy!r}")
        kind = LeaseLimit if isinstance(policy.default, Lease) else Limit
        limit = kind(self, checked_name(name), policy)
        self._limits.add(limit)
        return limit

    def all(self, rules: Iterable[Rule], wait: Duration | None = None, id: Id | None = None) -> AllDecision:
        """Charges several limits, all or none. With `wait`, waits until all of them grant the call at the same moment. An
        id names the charge on each key, to settle or to release it there."""
        call = Together(self, rules, id)
        try:
            return call.charged(checked_wait(wait), call.own)
        except BaseException as error:
            if call.own:
                call.abandoned(error)
            raise

    def admit(
        self,
        rules: Iterable[Rule],
        estimate: int | None = None,
        wait: Duration | None = None,
        id: Id | None = None,
    ) -> Admission:
        """A context manager that charges several limits, all or none, and settles them at the end of its block. A rule
        without a cost is charged the estimate, and settled to what was used. Leases are renewed while the block runs, and
        released at its end."""
        return Admission(Together(self, rules, id, estimate, with_id=True), checked_wait(wait))

    def wallet(self, limit: Limit, batch: int = 100, idle: Duration = 1.0) -> Wallet:
        """Decides in the process, from `batch` units of a key that are fetched at once. What is left when no call for a key
        was granted for `idle` seconds is given back. Never more are spent than the server has charged."""
        if not isinstance(limit, Limit):
            raise InvalidLimit(f"a wallet is for a limit with a rate, not for {limit!r}")
        wallet = Wallet(limit, checked_cost(batch), checked_seconds(idle, "idle", 0.000_001, 86_400))
        self._wallets.add(wallet)
        return wallet

    def _stop_wallets(self, key: bytes) -> list[Wallet]:
        """Lets no wallet spend what was fetched of a key. Returns those that have something to give back."""
        return [wallet for wallet in list(self._wallets) if wallet._stop(key)]

    def close(self) -> None:
        """Ends the calls that wait, which raise Closed, gives back what wallets have left and what calls without a reply may
        have been granted, and closes the connections of this object. The client stays as it is."""
        self._closed = True
        for wallet in list(self._wallets):
            wallet.close()
        self._calls.close()

    def __enter__(self) -> Limits:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Ids whose calls got no reply, or whose blocks have ended. These raise no error of the server.

    def _abandoned(
        self, calls: Calls, error: BaseException, keys: Sequence[tuple[_Limited, bytes]], id: Id, own: bool
    ) -> None:
        """A call, or what followed it, has ended by this: the task was cancelled, a signal has raised it, the limits were
        closed, or a lease has ended already. No reply came, but the server may have granted the call."""
        if isinstance(error, (Closed, LeaseLost)) or not isinstance(error, RateLimitError):
            calls.jobs.finish(lambda again: self._given_back(keys, id, own))

    def _released(self, limit: _Limited, key: bytes, id: Id, deadline: float | None = None) -> bool:
        """Returns whether it is worth another try: the server does not know the id, or does not answer."""
        try:
            words = ("RL.RELEASE", key, id)
            reply, again = self._calls.call(words, key, repeat=True, must=True, deadline=deadline)
            return reply is None and not again
        except RateLimitError as error:
            log.warning("%s: %s was not released: %s", limit.name, shown(id), error)
            return True

    def _given_back(self, keys: Sequence[tuple[_Limited, bytes]], id: Id, own: bool) -> None:
        """Releases an id whose call got no reply. The release takes another connection than the call. So the server may see
        it first, and grant the call afterwards, or it may not have seen yet that the connection of a waiting call is closed.
        Therefore an id that the server does not know is released again, if this package has made it: the program may use
        its own ones again."""
        deadline = clock.monotonic() + self._calls.total
        unknown = [each for each in keys if self._released(*each, id, deadline)]
        if own and unknown:
            self._calls.beside(lambda job: self._give_back_again(job, unknown, id))

    def _give_back_again(self, job: io.Job, keys: Sequence[tuple[_Limited, bytes]], id: Id) -> None:
        for seconds in AGAIN_S:
            job.pause(seconds)
            keys = [each for each in keys if self._released(*each, id)]
            if not keys:
                return

    def _settled(
        self, limit: _Limited, key: bytes, id: Id, charged: int, used: int, again: bool, deadline: float
    ) -> None:
        calls, words = self._calls, ("RL.SETTLE", key, id, used)
        try:
            reply, repeated = calls.call(words, key, repeat=True, must=True, deadline=deadline)
            # The key has forgotten the id, because the charge is past. After a repetition, nil means that the first one
            # settled.
            if reply is None and used > charged and not repeated and not again:
                # Sent once: it has no id, so it would be charged twice.
                force = limit._command(key, "FORCE", used - charged)
                calls.call(force, key, must=True, deadline=deadline)
        except RateLimitError as error:
            log.warning("%s: a charge of %d was not settled to %d: %s", limit.name, charged, used, error)
        limit._denials.forget(key)


class _Limited:
    def __init__(self, limits: Limits, name: str, policy: Policy) -> None:
        self._of = limits
        self.name: Final = name
        self.policy: Final = policy
        self._before_key = f"{limits._prefix}{name}:".encode()
        self._denials = Denials(limits._repeat_denials)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.policy!r}>"

    def _full_key(self, key: object) -> bytes:
        """The key on the server."""
        return self._before_key + checked_key(key)

    def _command(self, key: bytes, *more: Word, now: float | None = None) -> list[Word]:
        return self.policy.command(key, *more, now=now, call=key[len(self._before_key) :])

    def _decision(self, reply: object, now: float) -> Decision:
        return decision_of(reply, self.policy, self.name, self.policy.window_us(now))

    def _decide(self, key: bytes, cost: int, *more: Word, wait_us: int = 0, how: How = "") -> Decision:
        """Sends a command without an id, once."""
        now = clock.time()
        if how == "PEEK":
            algorithm, *policy = self.policy.rule(now)
            command: Sequence[Word] = ("RL.PEEK", algorithm, key, *policy, *more)
        else:
            command = self._command(key, *more, now=now)
        try:
            reply, _ = self._of._calls.call(command, key, wait_us=wait_us)
        except Unavailable as error:
            return self._decide_down(error, key, cost, how)
        return self._decision(reply, now)

    def _decide_down(self, error: Unavailable, key: bytes, cost: int, how: How = "") -> Decision:
        return self._of._down.decide(error, [(self.name, self.policy, key, cost)], how)[0]

    def _ended(self, key: bytes, words: Sequence[Word]) -> Decision | None:
        try:
            reply, _ = self._of._calls.call(words, key, repeat=True, must=not self._of._closed)
        finally:
            self._denials.forget(key)
        return None if reply is None else self._decision(reply, clock.time())

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """The decision that a call would get. Takes nothing."""
        full, units = self._full_key(key), checked_cost(cost)
        return self._decide(full, units, "COST", units, how="PEEK")

    def release(self, key: Key, id: Id) -> Decision | None:
        """Gives back the whole charge of an id, or ends its lease. None: the server does not know the id, or no longer."""
        full = self._full_key(key)
        return self._ended(full, ("RL.RELEASE", full, checked_id(id)))

    def pause(self, key: Key, seconds: Duration) -> float:
        """Lets the key grant nothing for so long, whatever its policy is. Calls that wait keep their places. Of two pauses
        the one that ends later is in force. Returns the seconds until it ends."""
        return self._pause(self._full_key(key), checked_pause(seconds))

    def resume(self, key: Key) -> None:
        """Ends the pause of a key."""
        self._pause(self._full_key(key), 0)

    def observe(self, key: Key, response: Any, max_pause: Duration = 3600) -> float:
        """Pauses the key if a third party has answered with 429 or 503, for as long as its headers say: `Retry-After`, or
        when a limit resets of which nothing remains. Returns the seconds until the pause in force ends; 0 if the response
        asks for none. It is one of requests, httpx, aiohttp or urllib. Whatever it says raises no error."""
        full, most = self._full_key(key), checked_pause(max_pause)
        seconds = min(asked_pause(response, clock.time()), most / 1_000_000)
        return self._pause(full, checked_pause(max(seconds, 0.001))) if seconds > 0 else 0.0

    def _pause(self, key: bytes, us: int) -> float:
        """Sets a pause, or ends it if it is 0. A wallet that has units of the key gives them back: after the server knows
        of the pause, so that it grants them to nobody before."""
        limits = self._of
        if us:
            limits._stop_wallets(key)
        try:
            # If it is repeated, the pause ends a little later.
            reply, _ = limits._calls.call(("RL.PAUSE", key, us_text(us)), key, repeat=True)
        except Unavailable as error:
            limits._down.goes_on(error, self.name)
            reply = 0
        finally:
            self._denials.forget(key)
            # Again, because of what was fetched meanwhile.
            for wallet in limits._stop_wallets(key) if us else ():
                limits._calls.beside(wallet._give_back)
        if type(reply) is not int or reply < 0:
            raise UnexpectedReply(f"{self.name}: the reply is not a length of time: {reply!r:.200}")
        return reply / 1000


class Limit(_Limited):
    """A limit with a rate. Make one with `limits.limit`."""

    def take(self, key: Key, cost: int = 1, id: Id | None = None) -> Decision:
        """Takes `cost` units, or none; with an id, once, however often it is called."""
        full, units = self._full_key(key), checked_cost(cost)
        if id is not None:
            return (Together(self._of, [(self, key, cost)], id).charged(0, False)).decisions[0]
        denials = self._denials
        since, changes = clock.monotonic(), denials.changes
        decision = denials.find(full, units)
        if decision is None:
            decision = self._decide(full, units, *_cost(units))
            denials.add(full, units, decision, since, changes)
        return decision

    def take_up_to(self, key: Key, units: int) -> Decision:
        """Takes as many units as fit, at most `units`."""
        return self._amount(key, units, "UPTO")

    def force(self, key: Key, units: int) -> Decision:
        """Takes all units, whatever the state. What exceeds the limit is a debt."""
        return self._amount(key, units, "FORCE")

    def refund(self, key: Key, units: int) -> Decision:
        """Gives back at most this many of the units in use."""
        return self._amount(key, units, "REFUND")

    def _amount(self, key: Key, units: int, amount: How) -> Decision:
        full, checked = self._full_key(key), checked_cost(units)
        try:
            return self._decide(full, checked, amount, checked, how=amount)
        finally:
            if amount != "UPTO":
                self._denials.forget(full)

    def until(self, key: Key, time: Any, cost: int = 1) -> Decision:
        """Takes units from a window that ends at `time`, a Unix time or a datetime. Only for Fixed."""
        full, units, end = self._full_key(key), checked_cost(cost), checked_until(time)
        if not isinstance(self.policy, Fixed) or self.policy.aligned:
            raise InvalidLimit(f"until is for a Fixed without align and zone, not {self.policy!r}")
        return self._decide(full, units, "UNTIL", end, *_cost(units))

    def wait(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Waits in line for the units, first come first served over all processes, for at most `seconds`. """
        full, units, wait_us = self._full_key(key), checked_cost(cost), checked_wait(seconds)
        return self._decide(full, units, *_cost(units), wait_us=wait_us)

    def reserve(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Books units that will be free within `seconds`. `wait` of the decision is when to act."""
        full, units, wait_us = self._full_key(key), checked_cost(cost), checked_wait(seconds)
        book = ("RESERVE", us_text(wait_us)) if wait_us else ()
        return self._decide(full, units, *_cost(units), *book)

    def settle(self, key: Key, id: Id, units: int) -> Decision | None:
        """Sets the charge of an id to what it really cost. None: the server does not know the id, or no longer."""
        full, checked = self._full_key(key), checked_cost(units, 0)
        return self._ended(full, ("RL.SETTLE", full, checked_id(id), checked))

    def charge(self, key: Key, estimate: int, wait: Duration | None = None, id: Id | None = None) -> Charge:
        """A context manager that charges an estimate, and settles it at the end of its block."""
        return Charge(Together(self._of, [(self, key)], id, estimate, with_id=True), checked_wait(wait))

    def admit(self, key: Key, cost: int = 1, wait: Duration | None = None) -> Guard:
        """A context manager, or a decorator, that takes units or raises RateLimited. The key of a decorator is a format
        string over the arguments of the function."""
        return Guard(self, key, checked_cost(cost), wait)


class LeaseLimit(_Limited):
    """A limit of how much runs at the same time. Make one with `limits.limit` and a Lease."""

    def hold(self, key: Key, wait: Duration | None = None, units: int = 1, id: Id | None = None) -> Held:
        """A context manager that holds a lease while its block runs."""
        return Held(Together(self._of, [(self, key, units)], id, with_id=True), checked_wait(wait))

    def renew(self, key: Key, id: Id) -> Decision:
        """Renews the lease of an id. Denied: the lease has ended."""
        return self._renewed(self._full_key(key), checked_id(id))

    def _renewed(self, key: bytes, id: Id, deadline: float | None = None) -> Decision:
        words = self._command(key, "ID", id, "RENEW")
        reply, _ = self._of._calls.call(
            words, key, repeat=True, must=not self._of._closed or deadline is not None, deadline=deadline
        )
        return self._decision(reply, clock.time())


class Together:
    """What one call charges: one limit or several, all or none."""

    def __init__(
        self, limits: Limits, rules: Iterable[Any], id: Id | None, estimate: int | None = None, with_id: bool = False
    ) -> None:
        """`with_id`: the call needs an id. Then rules without a cost are charged the estimate; else one unit."""
        listed = list(rules)
        if not 1 <= len(listed) <= MAX_KEYS:
            raise InvalidKey(f"there are 1 to {MAX_KEYS} limits in one call, not {len(listed)}")
        if any(not isinstance(rule, (tuple, list)) or not 2 <= len(rule) <= 3 for rule in listed):
            raise InvalidCost("a rule is a limit, a key, and perhaps a cost")
        self.of = limits
        self.limits: list[tuple[Limit | LeaseLimit, bytes]] = [
            (rule[0], rule[0]._full_key(rule[1])) for rule in listed
        ]
        self.keys = [key for _, key in self.limits]
        self.leases = [(limit, key) for limit, key in self.limits if isinstance(limit, LeaseLimit)]
        # For each rule, whether it is charged the estimate.
        self.estimated = [with_id and len(rule) == 2 and isinstance(rule[0], Limit) for rule in listed]
        if any(self.estimated) and estimate is None:
            raise InvalidCost("a rule without a cost needs an estimate")
        self.costs = [
            checked_cost(estimate if estimated else rule[2] if len(rule) == 3 else 1)
            for rule, estimated in zip(listed, self.estimated)
        ]
        if len(set(self.keys)) < len(self.keys):
            raise InvalidKey("a key is in the call twice")
        if isinstance(limits._client, io.CLUSTER) and len({key_slot(key) for key in self.keys}) > 1:
            raise InvalidKey("in a cluster, all keys of the call need one hash tag")
        # Those of the event loop in which it was charged: when the call is dropped, perhaps no loop runs.
        self._calls: Calls | None = None
        self.own = id is None
        self.id = None if id is None else checked_id(id)
        if self.own and (with_id or self.leases):
            self.id = new_id()

    def _words(self, now: float, *more: Word) -> list[Word]:
        if len(self.limits) == 1:
            limit, key = self.limits[0]
            return limit._command(key, "COST", self.costs[0], *more, now=now)
        words: list[Word] = ["RL.ALL", len(self.keys), *self.keys]
        for (limit, _), cost in zip(self.limits, self.costs):
            words += [*limit.policy.rule(now), "COST", cost]
        return [*words, *more]

    def charged(self, wait_us: int, give_back: bool) -> AllDecision:
        """`give_back`: if no reply comes. A program knows its own ids, and may call again."""
        calls, now, id = self.of._calls, clock.time(), self.id
        self._calls = calls
        words = self._words(now) if id is None else self._words(now, "ID", id)
        try:
            reply, repeated = calls.call(words, self.keys[0], repeat=id is not None, wait_us=wait_us)
        except Unavailable as error:
            if error.sent and id is not None and give_back:
                calls.beside(lambda job: self.of._given_back(self.limits, id, self.own))
            rules = [(limit.name, limit.policy, key, cost) for (limit, key), cost in zip(self.limits, self.costs)]
            return all_of(self.of._down.decide(error, rules), id)
        if len(self.limits) == 1:
            return all_of([self.limits[0][0]._decision(reply, now)], id)
        shape = isinstance(reply, (list, tuple)) and len(reply) == 3 and isinstance(reply[2], (list, tuple))
        if not shape or type(reply[0]) is not int or type(reply[1]) is not int or len(reply[2]) != len(self.limits):
            raise UnexpectedReply(f"RL.ALL: the reply has another shape: {reply!r:.200}")
        rows = [limit._decision(row, now) for (limit, _), row in zip(self.limits, reply[2])]
        if not reply[0] and repeated and id is not None:
            # The first call may have been charged, and a lease may have ended since then.
            calls.jobs.finish(lambda again: self.of._given_back(self.limits, id, self.own))
        return AllDecision(reply[0] == 1, None if reply[1] < 0 else reply[1], rows, id)

    def abandoned(self, error: BaseException) -> None:
        if self.id is not None and self._calls is not None:
            self.of._abandoned(self._calls, error, self.limits, self.id, self.own)


def _cost(units: int) -> tuple[Word, ...]:
    return () if units == 1 else ("COST", units)


def _after_fork() -> None:
    for limits in list(_every):
        limits._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
