"""What the calls do, without doing it: the flows are generators that yield what a connection has to do (Send, Sleep, Finish,
Later), and get the result. _sync.py and _aio.py run them, with threads and with asyncio."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import redis

from ._decision import AllDecision, Decision, decision_of, uncounted
from ._errors import (
    Down,
    InvalidCost,
    InvalidKey,
    InvalidLimit,
    LeaseLost,
    NoModule,
    RateLimited,
    RateLimitError,
    Refused,
    UnexpectedReply,
    WrongType,
)
from ._policy import (
    Duration,
    Fixed,
    Key,
    Lease,
    Policy,
    Word,
    checked_cost,
    checked_id,
    checked_key,
    checked_name,
    checked_until,
    checked_wait,
    us_text,
)
from ._topology import Address, Topology, key_slot

log = logging.getLogger("redis_rl")

# A waiting call has this much longer than its wait, so that the server ends the wait.
MARGIN_S = 5.0
# The pause before a call is repeated.
PAUSE_S = 0.05
# When an id that the server did not know is released again: after so many seconds, and after so many more.
AGAIN_S = (0.1, 0.9)
MAX_KEYS = 1024


@dataclass
class Send:
    """Sends a command on one connection, and returns the reply. Raises Lost, or redis-py's ResponseError."""

    words: Sequence[Word | int]
    address: Address | None
    # When the connection must stand, and the reply must be there unless the call waits. By time.monotonic().
    deadline: float
    # How many seconds the server may delay the reply; None if the call does not wait.
    wait: float | None = None
    # A command that is sent before on the same connection.
    prelude: str | None = None


@dataclass
class Sleep:
    seconds: float


@dataclass
class Finish:
    """Runs a flow to its end, also if the program stops waiting for it because its task is cancelled."""

    flow: Flow[Any]


@dataclass
class Later:
    """Runs a flow after so many seconds, or when the connections are closed, and does not wait for it."""

    seconds: float
    flow: Flow[Any]


T = TypeVar("T")
Operation = Union[Send, Sleep, Finish, Later]
Flow = Generator[Operation, Any, T]


class Lost(Exception):
    """There is no reply. `sent`: the server may have executed the command."""

    def __init__(self, cause: BaseException, sent: bool) -> None:
        super().__init__(str(cause) or repr(cause))
        self.cause = cause
        self.sent = sent


class Closed(Down):
    """The program has closed the connections while the call waited."""


_CODES = frozenset(
    "ASK BUSY CLUSTERDOWN CROSSSLOT EXECABORT LOADING MASTERDOWN MISCONF MOVED NOAUTH NOPERM NOREPLICAS OOM READONLY "
    "TRYAGAIN UNBLOCKED WRONGPASS WRONGTYPE".split()
)
# The server has not executed the call, and may do so a moment later, or another server may.
_AGAIN = frozenset("CLUSTERDOWN LOADING MASTERDOWN READONLY TRYAGAIN UNBLOCKED".split())
# The settings of the client are wrong. Time does not change that, so it must not turn limits off.
_RIGHTS = frozenset("NOAUTH NOPERM WRONGPASS".split())
_CLASSES: dict[type[Exception], str] = {
    # Before its base, which is AskError.
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "NOAUTH",
    redis.exceptions.OutOfMemoryError: "OOM",
}


def code_of(error: Exception) -> str:
    """The first word of an error reply. redis-py removes it from the message of some errors."""
    for base, code in _CLASSES.items():
        if isinstance(error, base):
            return code
    first = str(error).split(" ", 1)[0]
    return first if first in _CODES else "ERR"


def keeps_connection(error: Exception) -> bool:
    """Whether the connection on which this error came may be used again: not if it leads to the wrong server."""
    return code_of(error) in ("ERR", "WRONGTYPE", "OOM", "NOPERM", "CROSSSLOT", "MOVED", "ASK")


def is_reply(error: Exception) -> bool:
    """Whether the server has sent this error. redis-py's classes for LOADING, NOAUTH and WRONGPASS are ConnectionErrors."""
    others = (redis.exceptions.BusyLoadingError, redis.exceptions.AuthenticationError)
    return isinstance(error, redis.ResponseError) or isinstance(error, others)


def new_id() -> str:
    return uuid.uuid4().hex


class Core:
    """What all limits of a client share."""

    def __init__(self, prefix: str, on_down: str, patience: float, topology: Topology | None, peek_replica: bool) -> None:
        if on_down not in ("open", "closed"):
            raise ValueError(f"on_down is 'open' or 'closed', not {on_down!r}")
        if not isinstance(prefix, str):
            raise InvalidLimit(f"the prefix is text, not {prefix!r}")
        if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not 0 < patience <= 86_400:
            raise ValueError(f"patience is a number of seconds above 0, not {patience!r}")
        self.prefix = prefix
        self.on_down = on_down
        self.patience = float(patience)
        self.topology = topology
        self.peek_replica = peek_replica
        # How many times the connections were closed by the program. That ends the calls that wait.
        self.closings = 0
        self._log_lock = threading.Lock()
        self._logged = float("-inf")
        self._unlogged = 0

    # Sending

    def call(
        self,
        words: Sequence[Word | int],
        key: bytes,
        *,
        repeat: bool,
        wait_us: int = 0,
        patience: float | None = None,
        replica: bool = False,
    ) -> Flow[tuple[Any, bool]]:
        """Returns the reply, and whether the command had been sent before without a reply. Without `repeat` it is sent
        once."""
        patience = self.patience if patience is None else patience
        topology = self.topology
        slot = key_slot(key) if topology else 0
        begin = time.monotonic()
        deadline = begin + patience
        end = begin + wait_us / 1_000_000
        sent = False
        first = True
        redirect: tuple[Address, str | None] | None = None
        redirects = 0
        closings = self.closings
        while True:
            if wait_us and closings != self.closings:
                raise Closed("closed while it waited", sent)
            address: Address | None = None
            prelude: str | None = None
            if topology:
                if redirect:
                    (address, prelude), redirect = redirect, None
                else:
                    if topology.stale:
                        yield from self._refresh(topology, deadline)
                    address = topology.address(slot, replica)
                    prelude = "READONLY" if replica else None
            left_us = wait_us if first else max(0, int((end - time.monotonic()) * 1_000_000))
            first = False
            block = ("BLOCK", us_text(left_us)) if left_us else ()
            wait = left_us / 1_000_000 if left_us else None
            try:
                reply = yield Send((*words, *block), address, deadline, wait, prelude)
                return reply, sent
            except Lost as lost:
                error: Exception = lost
                cause = lost.cause
                sent = sent or lost.sent
                if topology:
                    topology.stale = True
            except redis.RedisError as answer:
                error = answer
                cause = answer
                code = code_of(answer)
                if topology and code in ("MOVED", "ASK") and address is not None and redirects < 16:
                    redirects += 1
                    moved_slot, target = topology.target(answer, address)
                    if code == "MOVED":
                        topology.follow(moved_slot, target)
                    redirect = (target, "ASKING" if code == "ASK" else None)
                    continue
                if code not in _AGAIN:
                    raise self._translated(answer, code, words, key) from answer
                if topology:
                    topology.stale = True
            if wait_us and closings != self.closings:
                raise Closed("closed while it waited", sent) from cause
            now = time.monotonic()
            if wait is not None and (not isinstance(error, Lost) or error.sent):
                # The time in line does not count for the patience.
                deadline = now + patience
            if not repeat or now + PAUSE_S >= deadline:
                raise Down(f"no decision: {error}", sent) from cause
            yield Sleep(PAUSE_S)

    def _translated(self, error: Exception, code: str, words: Sequence[Word | int], key: bytes) -> RateLimitError:
        message = str(error)
        if code == "WRONGTYPE":
            keys = words[2 : 2 + int(words[1])] if words[0] == "RL.ALL" else [key]
            names = " or ".join(repr(_shown(each)) for each in keys)
            return WrongType(f"{names}: {message.removeprefix('WRONGTYPE ')}")
        if code == "ERR":
            if message.lower().startswith("unknown command"):
                return NoModule(f"the server has no module redis-rl, or one that is too old: {message}")
            return Refused(message)
        if code in _RIGHTS:
            return Refused(message)
        if code == "CROSSSLOT":
            return InvalidKey(message)
        return Down(f"no decision: {message}")

    def _refresh(self, topology: Topology, deadline: float) -> Flow[None]:
        """Reads the map of the cluster again, from the first node that answers. If none does, the old one stays."""
        for address in topology.to_ask():
            now = time.monotonic()
            if now >= deadline:
                return
            try:
                # One node that hangs must not take all the time.
                reply = yield Send(("CLUSTER", "SLOTS"), address, now + (deadline - now) / 2)
                topology.update(reply, address)
            except (Lost, redis.RedisError, AssertionError, ValueError):
                continue
            if not topology.stale:
                return

    # Deciding

    def let_pass(self, down: Down, what: str) -> None:
        """Raises in the mode "closed", or if the program has ended the wait. In the mode "open" it logs, once a second at
        most."""
        if self.on_down == "closed" or isinstance(down, Closed):
            raise down
        with self._log_lock:
            now = time.monotonic()
            self._unlogged += 1
            if now < self._logged + 1:
                return
            calls, self._unlogged, self._logged = self._unlogged, 0, now
        log.warning("%s: %d calls went on uncounted: %s", what, calls, down)

    def all(
        self, rules: Sequence[tuple[LimitFlows, object, object]], wait: Duration | None, id: Key | None
    ) -> Flow[AllDecision]:
        return (yield from self.together(self.checked_rules(rules, id), checked_wait(wait)))

    def checked_rules(
        self, rules: Sequence[tuple[LimitFlows, object, object]], id: Key | None, with_id: bool = False
    ) -> Together:
        """`with_id`: the call needs an id."""
        if not 1 <= len(rules) <= MAX_KEYS:
            raise InvalidKey(f"there are 1 to {MAX_KEYS} limits in one call, not {len(rules)}")
        limits = [limit for limit, _, _ in rules]
        keys = [limit.full_key(key) for limit, key, _ in rules]
        costs = [checked_cost(cost) for _, _, cost in rules]
        if len(set(keys)) < len(keys):
            raise InvalidKey("a key is in the call twice")
        if self.topology and len({key_slot(key) for key in keys}) > 1:
            raise InvalidKey("in a cluster, all keys of the call need one hash tag")
        own_id = id is None
        if id is not None:
            checked_id(id)
        elif with_id or any(isinstance(limit.policy, Lease) for limit in limits):
            id = new_id()
        return Together(limits, keys, costs, id, own_id)

    def together(self, call: Together, wait_us: int) -> Flow[AllDecision]:
        """Charges several limits, all or none."""
        limits, keys, costs, id = call.limits, call.keys, call.costs, call.id
        words: list[Word | int] = ["RL.ALL", len(keys), *keys]
        for limit, cost in zip(limits, costs):
            words += [*limit.policy.rule(), "COST", cost]
        if id is not None:
            words += ["ID", id]

        try:
            reply, repeated = yield from self.call(words, keys[0], repeat=id is not None, wait_us=wait_us)
        except Down as down:
            if id is not None and down.sent:
                yield Finish(self._released(call, False))
            self.let_pass(down, ", ".join(limit.name for limit in limits))
            rows = [uncounted(cost, limit.policy, limit.name) for limit, cost in zip(limits, costs)]
            return AllDecision(True, 0, rows, id)
        except (RateLimitError, GeneratorExit):
            raise
        except BaseException:
            # The task was cancelled, or a signal has raised this. No reply came, but the server may have granted the call.
            yield from self.abandon(call)
            raise
        shape = isinstance(reply, (list, tuple)) and len(reply) == 3 and isinstance(reply[2], (list, tuple))
        if not shape or type(reply[0]) is not int or type(reply[1]) is not int or len(reply[2]) != len(limits):
            raise UnexpectedReply(f"RL.ALL: the reply has another shape: {reply!r:.200}")
        rows = [decision_of(row, limit.policy, limit.name) for limit, row in zip(limits, reply[2])]
        if not reply[0] and repeated:
            # The first call may have been charged, and a lease may have ended since then.
            yield Finish(self._released(call, True))
        return AllDecision(reply[0] == 1, None if reply[1] < 0 else reply[1], rows, id)

    def _released(self, call: Together, repeat: bool) -> Flow[None]:
        # One deadline for all keys, so that a server that is down does not take the patience of each.
        deadline = time.monotonic() + self.patience
        for limit, key in zip(call.limits, call.keys):
            yield from limit.given_back(key, call.id, own=call.own_id, repeat=repeat, deadline=deadline)

    def abandon(self, call: Together) -> Flow[None]:
        """Gives back what the server may have granted, because the block does not run."""
        if call.id is not None and not call.abandoned:
            yield Finish(self._released(call, True))
            call.abandoned = True

    # Several limits around a block

    def open_admission(self, admission: AdmissionState, wait_us: int) -> Flow[None]:
        begin = time.monotonic()
        admission.decision = yield from self.together(admission.call, wait_us)
        if not admission.decision:
            raise RateLimited(admission.decision)
        if not admission.decision.counted:
            return
        try:
            for lease in admission.leases:
                yield from lease.flows.begin_lease(lease, begin)
        except GeneratorExit:
            raise
        except BaseException:
            # The block does not run.
            yield from self.abandon(admission.call)
            raise

    def close_admission(self, admission: AdmissionState, failed: bool, again: bool = False) -> Flow[None]:
        """Ends an admission. The charges of rules without a cost become what was used. If that is unknown, all charges stay;
        after an exception, all become nothing. `again`: a signal has interrupted this before."""
        if admission.decision.counted:
            # What the server may have charged without a decision was released when the admission was opened.
            yield Finish(self._admission_ended(admission, failed, again))

    def _admission_ended(self, admission: AdmissionState, failed: bool, again: bool) -> Flow[None]:
        call, used = admission.call, admission.used
        deadline = time.monotonic() + self.patience
        rows = zip(call.limits, call.keys, admission.decision.decisions, admission.estimated)
        for limit, key, decision, estimated in reversed(list(rows)):
            if isinstance(limit.policy, Lease):
                yield from limit.released_quietly(key, call.id, repeat=True, deadline=deadline)
                continue
            final = decision.granted
            if used is None and failed:
                final = 0
            elif used is not None and estimated:
                final = used
            yield from limit.settled_quietly(
                key, call.id or b"", decision.granted, final, again=again, deadline=deadline
            )


@dataclass
class Together:
    """What one RL.ALL charges."""

    limits: list[LimitFlows]
    keys: list[bytes]
    costs: list[int]
    id: Key | None
    # Whether this package has made the id.
    own_id: bool
    # What the server may have granted was given back, because the block did not run.
    abandoned: bool = False


class LimitFlows:
    """A limit: a policy and a name. Its methods are flows."""

    def __init__(self, core: Core, name: str, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            raise InvalidLimit(f"a policy is a Fixed, Slide, Gcra, Bucket or Lease, not {policy!r}")
        self.core = core
        self.name = checked_name(name)
        self.policy = policy
        self._before_key = f"{core.prefix}{name}:".encode()

    def full_key(self, key: object) -> bytes:
        return self._before_key + checked_key(key)

    def decision(self, reply: object) -> Decision:
        return decision_of(reply, self.policy, self.name)

    def _decide(
        self, key: bytes, cost: int, *more: Word | int, wait_us: int = 0, words: Sequence[Word | int] = ()
    ) -> Flow[Decision]:
        """Sends a command without an id."""
        words = words or (*self.policy.command(key), *more)
        replica = bool(words) and words[0] == "RL.PEEK" and self.core.peek_replica
        try:
            reply, _ = yield from self.core.call(words, key, repeat=False, wait_us=wait_us, replica=replica)
        except Down as down:
            self.core.let_pass(down, self.name)
            return uncounted(cost, self.policy, self.name)
        return self.decision(reply)

    def take(self, key: object, cost: object) -> Flow[Decision]:
        full, units = self.full_key(key), checked_cost(cost)
        return (yield from self._decide(full, units, *_cost(units)))

    def amount(self, key: object, units: object, amount: str) -> Flow[Decision]:
        full, checked = self.full_key(key), checked_cost(units)
        return (yield from self._decide(full, checked, amount, checked))

    def until(self, key: object, time: object, cost: object) -> Flow[Decision]:
        full, units, end = self.full_key(key), checked_cost(cost), checked_until(time)
        if not isinstance(self.policy, Fixed) or self.policy.aligned:
            raise InvalidLimit(f"until is for a Fixed without align, not {self.policy!r}")
        return (yield from self._decide(full, units, "UNTIL", end, *_cost(units)))

    def peek(self, key: object, cost: object) -> Flow[Decision]:
        full, units = self.full_key(key), checked_cost(cost)
        algorithm, *policy = self.policy.rule()
        words = ("RL.PEEK", algorithm, full, *policy, *_cost(units))
        return (yield from self._decide(full, units, words=words))

    def wait(self, key: object, wait: object, cost: object) -> Flow[Decision]:
        full, units, wait_us = self.full_key(key), checked_cost(cost), checked_wait(wait)
        return (yield from self._decide(full, units, *_cost(units), wait_us=wait_us))

    def reserve(self, key: object, wait: object, cost: object) -> Flow[Decision]:
        full, units, wait_us = self.full_key(key), checked_cost(cost), checked_wait(wait)
        book = ("RESERVE", us_text(wait_us)) if wait_us else ()
        decision = yield from self._decide(full, units, *_cost(units), *book)
        if decision and decision.wait_ms:
            yield Sleep(decision.wait_ms / 1000)
        return decision

    def settle(self, key: object, id: object, units: object) -> Flow[Decision | None]:
        full, checked = self.full_key(key), checked_cost(units, 0)
        return (yield from self._end(full, ("RL.SETTLE", full, checked_id(id), checked)))

    def release(self, key: object, id: object) -> Flow[Decision | None]:
        full = self.full_key(key)
        return (yield from self._end(full, ("RL.RELEASE", full, checked_id(id))))

    def _end(self, key: bytes, words: Sequence[Word | int]) -> Flow[Decision | None]:
        reply, _ = yield from self.core.call(words, key, repeat=True)
        return None if reply is None else self.decision(reply)

    def released_quietly(
        self, key: bytes, id: Key | None, *, repeat: bool, deadline: float | None = None
    ) -> Flow[bool]:
        """Returns whether the server has answered that it does not know the id."""
        try:
            words = ("RL.RELEASE", key, id or b"")
            reply, repeated = yield from self.core.call(words, key, repeat=repeat, patience=_left(deadline))
            return reply is None and not repeated
        except RateLimitError as error:
            log.warning("%s: %s was not released: %s", self.name, _shown(id), error)
            return False

    def given_back(
        self, key: bytes, id: Key | None, *, own: bool, repeat: bool, deadline: float | None = None
    ) -> Flow[None]:
        """Releases an id whose call got no reply. The release takes another connection than the call. So the server may see
        it first, and grant the call afterwards, or it may not have seen yet that the connection of a waiting call is closed.
        Therefore an id that the server does not know is released again, if this package has made it: the program may use
        its own ones again."""
        unknown = yield from self.released_quietly(key, id, repeat=repeat, deadline=deadline)
        if unknown and own:
            yield Later(AGAIN_S[0], self._given_back_again(key, id, AGAIN_S[1:]))

    def _given_back_again(self, key: bytes, id: Key | None, pauses: Sequence[float]) -> Flow[None]:
        unknown = yield from self.released_quietly(key, id, repeat=True)
        if unknown and pauses:
            yield Later(pauses[0], self._given_back_again(key, id, pauses[1:]))

    # A charge

    def open_charge(self, charge: ChargeState, wait_us: int) -> Flow[None]:
        words = self.policy.command(charge.full_key, "COST", str(charge.estimate), "ID", charge.id)
        yield from self._open(charge, words, wait_us)

    def _open(self, held: ChargeState | LeaseState, words: Sequence[Word], wait_us: int) -> Flow[None]:
        try:
            reply, _ = yield from self.core.call(words, held.full_key, repeat=True, wait_us=wait_us)
        except Down as down:
            if down.sent:
                yield Finish(self.given_back(held.full_key, held.id, own=held.own_id, repeat=False))
            self.core.let_pass(down, self.name)
            held.decision = uncounted(held.estimate, self.policy, self.name)
            return
        except (RateLimitError, GeneratorExit):
            raise
        except BaseException:
            # The task was cancelled, or a signal has raised this. No reply came, but the server may have granted the call.
            yield from self.abandon(held)
            raise
        held.decision = self.decision(reply)
        if not held.decision:
            raise RateLimited(held.decision)

    def abandon(self, held: ChargeState | LeaseState) -> Flow[None]:
        """Gives back what the server may have granted, because the block does not run."""
        if not held.abandoned:
            yield Finish(self.given_back(held.full_key, held.id, own=held.own_id, repeat=True))
            held.abandoned = True

    def close_charge(self, charge: ChargeState, failed: bool, again: bool = False) -> Flow[None]:
        """Ends a charge: to what was used; else, after an exception, to nothing; else to the estimate. `again`: a signal
        has interrupted this before."""
        if charge.settled and not again:
            return
        charge.settled = True
        if not charge.decision.counted:
            # What the server may have charged was released when the charge was opened.
            return
        charged = charge.decision.granted
        used = charge.used if charge.used is not None else 0 if failed else charged
        yield Finish(self.settled_quietly(charge.full_key, charge.id, charged, used, again=again))

    def settled_quietly(
        self, key: bytes, id: Key, charged: int, used: int, *, again: bool = False, deadline: float | None = None
    ) -> Flow[None]:
        """Raises no error of the server: the work is done, and its result counts more than its accounting."""
        try:
            words = ("RL.SETTLE", key, id, used)
            reply, repeated = yield from self.core.call(words, key, repeat=True, patience=_left(deadline))
            # The key has forgotten the id, because the charge is past. After a repetition, nil means that the first one
            # settled.
            if reply is None and used > charged and not repeated and not again:
                # Sent once: it has no id, so it would be charged twice.
                force = self.policy.command(key, "FORCE", str(used - charged))
                yield from self.core.call(force, key, repeat=False, patience=_left(deadline))
        except RateLimitError as error:
            log.warning("%s: a charge of %d was not settled to %d: %s", self.name, charged, used, error)

    # A lease

    def open_lease(self, lease: LeaseState, wait_us: int) -> Flow[None]:
        begin = time.monotonic()
        words = self.policy.command(lease.full_key, "ID", lease.id, "COST", str(lease.estimate))
        yield from self._open(lease, words, wait_us)
        if not lease.decision.counted:
            return
        try:
            yield from self.begin_lease(lease, begin)
        except GeneratorExit:
            raise
        except BaseException:
            # The block does not run.
            yield from self.abandon(lease)
            raise

    def begin_lease(self, lease: LeaseState, begin: float) -> Flow[None]:
        """A lease was granted to a call that began at `begin`. When the server has granted it is unknown: so one that had to
        wait is renewed, and lasts a ttl from now."""
        lease.ends = begin + lease.ttl
        if time.monotonic() > begin + lease.ttl / 3:
            try:
                yield from self.renew_lease(lease)
            except Down as down:
                log.warning("%s: the lease %s was not renewed: %s", self.name, _shown(lease.id), down)

    def renew(self, key: object, id: object) -> Flow[Decision]:
        full, checked = self.full_key(key), checked_id(id)
        reply, _ = yield from self.core.call(self.policy.command(full, "ID", checked, "RENEW"), full, repeat=True)
        return self.decision(reply)

    def renew_lease(self, lease: LeaseState) -> Flow[None]:
        """Renews a lease, or raises LeaseLost."""
        begin = time.monotonic()
        patience = min(self.core.patience, lease.ttl / 4)
        words = self.policy.command(lease.full_key, "ID", lease.id, "RENEW")
        reply, _ = yield from self.core.call(words, lease.full_key, repeat=True, patience=patience)
        if not self.decision(reply):
            lease.lost = True
            raise LeaseLost(f"{self.name}: the lease {_shown(lease.id)} is lost")
        lease.ends = max(lease.ends, begin + lease.ttl)

    def heartbeat(self, lease: LeaseState) -> Flow[None]:
        """Renews a lease at each third of its ttl. Returns when it is lost."""
        while True:
            now = time.monotonic()
            if now >= lease.ends:
                lease.lost = True
                return
            yield Sleep(min(lease.ttl / 3, lease.ends - now))
            try:
                yield from self.renew_lease(lease)
            except LeaseLost:
                return
            except Exception as error:
                # Whatever it is, the next renewal may succeed. If none does, the lease is lost when it ends.
                log.warning("%s: the lease %s was not renewed: %s", self.name, _shown(lease.id), error)

    def close_lease(self, lease: LeaseState) -> Flow[None]:
        if lease.decision.counted:
            yield Finish(self.released_quietly(lease.full_key, lease.id, repeat=True))


class ChargeState:
    """The state of a charge, without its connection."""

    def __init__(self, limit: LimitFlows, key: object, estimate: object, id: Key | None) -> None:
        self.flows = limit
        self.full_key = limit.full_key(key)
        self.estimate = checked_cost(estimate)
        if id is not None:
            checked_id(id)
        self.id: Key = new_id() if id is None else id
        self.own_id = id is None
        self.decision: Decision
        self.settled = False
        # What the server may have granted was given back, because the block did not run.
        self.abandoned = False
        self._used: int | None = None

    @property
    def used(self) -> int | None:
        """What the work has used: a whole number from 0, or None as long as it is unknown."""
        return self._used

    @used.setter
    def used(self, units: int | None) -> None:
        self._used = None if units is None else checked_cost(units, 0)


class LeaseState:
    """The state of a lease that is held, without its connection."""

    def __init__(self, limit: LimitFlows, key: object, cost: object, id: Key | None) -> None:
        assert isinstance(limit.policy, Lease)
        self.flows = limit
        self.full_key = limit.full_key(key)
        self.estimate = checked_cost(cost)
        if id is not None:
            checked_id(id)
        self.id: Key = new_id() if id is None else id
        self.own_id = id is None
        self.ttl = limit.policy.ttl
        self.decision: Decision
        # True when a renewal was denied, or none was answered for a ttl.
        self.lost = False
        # The lease lasts at least until then, by time.monotonic().
        self.ends = float("-inf")
        # What the server may have granted was given back, because the block did not run.
        self.abandoned = False

    def check(self) -> None:
        """Raises LeaseLost if the lease is known to be lost. Asks no server."""
        if self.lost:
            raise LeaseLost(f"{self.flows.name}: the lease {_shown(self.id)} is lost")


class AdmissionState:
    """The state of an admission, without its connection."""

    def __init__(
        self, core: Core, rules: Iterable[tuple[LimitFlows, object, object]], estimate: object, id: Key | None
    ) -> None:
        """The cost of a rule is None if it is not known yet."""
        listed = list(rules)
        self.core = core
        # For each rule, whether it is charged the estimate.
        self.estimated = [cost is None and not isinstance(limit.policy, Lease) for limit, _, cost in listed]
        if any(self.estimated) and estimate is None:
            raise InvalidCost("a rule without a cost needs an estimate")
        costs = [estimate if estimated else cost for (_, _, cost), estimated in zip(listed, self.estimated)]
        costed = [(limit, key, 1 if cost is None else cost) for (limit, key, _), cost in zip(listed, costs)]
        self.call = core.checked_rules(costed, id, with_id=True)
        assert self.call.id is not None
        self.id: Key = self.call.id
        self.leases = [
            LeaseState(limit, key, cost, self.id) for limit, key, cost in costed if isinstance(limit.policy, Lease)
        ]
        self.decision: AllDecision
        self._used: int | None = None

    @property
    def used(self) -> int | None:
        """What the work has used: a whole number from 0, or None as long as it is unknown."""
        return self._used

    @used.setter
    def used(self, units: int | None) -> None:
        self._used = None if units is None else checked_cost(units, 0)

    def check(self) -> None:
        """Raises LeaseLost if a lease is known to be lost. Asks no server."""
        for lease in self.leases:
            lease.check()


def rules_of(rules: Iterable[Any]) -> list[tuple[LimitFlows, object, object]]:
    """The rules of `admit`: a limit, a key, and perhaps a cost."""
    listed = []
    for rule in rules:
        if not 2 <= len(rule) <= 3:
            raise InvalidCost(f"a rule is a limit, a key, and perhaps a cost, not {rule!r}")
        listed.append((rule[0]._flows, rule[1], rule[2] if len(rule) == 3 else None))
    return listed


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _cost(units: int) -> tuple[Word | int, ...]:
    return () if units == 1 else ("COST", units)


def _shown(word: Word | int | None) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
