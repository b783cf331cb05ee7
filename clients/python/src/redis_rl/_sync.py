"""Limits over redis-py for threads."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import select
import socket
import string
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import _wire
from ._decision import AllDecision, Decision, uncounted
from ._errors import Down, InvalidKey, InvalidLimit, RateLimitError
from ._flow import (
    MARGIN_S,
    AdmissionState,
    ChargeState,
    Core,
    Finish,
    Flow,
    Later,
    LeaseState,
    LimitFlows,
    Lost,
    Send,
    is_reply,
    keeps_connection,
    log,
    rules_of,
)
from ._local import CHANNEL, PING_S, Denials, Wallet, peek_words, worth_watching
from ._policy import Duration, Key, Lease, Policy, RatePolicy, checked_cost, checked_key, checked_wait
from ._topology import Address, key_slot

T = TypeVar("T")
P = ParamSpec("P")
# A rule of `admit`.
Rule: TypeAlias = "tuple[Limit | LeaseLimit, Key] | tuple[Limit | LeaseLimit, Key, int]"


class _Node:
    """The connections to one server. At most `most` of them carry calls that do not wait; a call that waits has its own."""

    def __init__(self, connect: Callable[[], Any], most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[Any] = []
        self._places = threading.BoundedSemaphore(most)
        self._pid = os.getpid()
        # Those on which calls wait, and how many times they were ended.
        self._waiting: set[Any] = set()
        self._ended = 0
        # The time-out of the client.
        self._own: float | None = None

    def send(self, operation: Send) -> Any:
        if self._pid != os.getpid():
            # A process that was forked must not use the connections of its parent.
            self._idle, self._places, self._pid = [], threading.BoundedSemaphore(self._most), os.getpid()
            self._waiting = set()
        if operation.wait is not None:
            return self._send(operation)
        places = self._places
        if not places.acquire(timeout=max(0.0, operation.deadline - time.monotonic())):
            raise Lost(redis.exceptions.TimeoutError(f"all {self._most} connections are in use"), False)
        try:
            return self._send(operation)
        finally:
            places.release()

    def _send(self, operation: Send) -> Any:
        connection = None
        sent = False
        ended = self._ended
        try:
            connection = self._take()
            if connection is None:
                connection = self._connect()
                self._own = connection.socket_timeout
                # Of the two, redis-py takes the first to connect, and the second to wait for replies.
                own = getattr(connection, "socket_connect_timeout", None)
                connection.socket_timeout = left = self._left(operation)
                connection.socket_connect_timeout = left if own is None else min(own, left)
                connection.connect()
            connection._sock.settimeout(self._left(operation))
            sent = True
            if operation.prelude is not None:
                connection.send_command(operation.prelude, check_health=False)
            connection.send_command(*operation.words, check_health=False)
            if operation.prelude is not None:
                connection.read_response()
            if operation.wait is not None:
                connection._sock.settimeout(operation.wait + MARGIN_S)
                self._waiting.add(connection)
                if ended != self._ended:
                    raise redis.ConnectionError("closed")
            reply = connection.read_response()
        except BaseException as error:
            reply = isinstance(error, Exception) and is_reply(error)
            if reply and keeps_connection(error):  # type: ignore[arg-type]
                self._give(connection)
                raise
            if connection is not None:
                connection.disconnect()
            lost = isinstance(error, (redis.RedisError, OSError)) and not isinstance(error, redis.DataError)
            if lost:
                # Not if a signal has interrupted the call: that says nothing about the server.
                self.drop()
            # An error reply while connecting (NOAUTH, LOADING) is also an answer of the server.
            if reply or not lost:
                raise
            raise Lost(error, sent) from error
        finally:
            self._waiting.discard(connection)
        self._give(connection)
        return reply

    def end_waits(self) -> None:
        self._ended += 1
        for connection in list(self._waiting):
            # The thread that waits reads the end of the connection, and closes it.
            with contextlib.suppress(OSError, AttributeError):
                connection._sock.shutdown(socket.SHUT_RDWR)

    def _left(self, operation: Send) -> float:
        left = operation.deadline - time.monotonic()
        if left <= 0:
            raise redis.exceptions.TimeoutError("no connection in time")
        return left if self._own is None else min(self._own, left)

    def _take(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _wire.is_stale(connection._sock):
                return connection
            connection.disconnect()

    def _give(self, connection: Any) -> None:
        if len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def drop(self) -> None:
        """Closes the connections that nobody uses: they lead to the same server as one that has failed."""
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:
                return


class SyncIO:
    """Does what the flows say."""

    def __init__(self, client: Any, most: int) -> None:
        self.cluster = isinstance(client, redis.RedisCluster)
        self.topology = _wire.topology_of(client) if self.cluster else None
        self._client = client
        self._most = most
        self._nodes: dict[Address | None, _Node] = {}
        self._lock = threading.Lock()
        self._later = _Later(self)

    def run(self, flow: Flow[T], stop: threading.Event | None = None) -> T | None:
        """Runs a flow. When `stop` is set, ends it at its next pause, and returns None."""
        try:
            operation = next(flow)
            while True:
                try:
                    result: Any = None
                    if isinstance(operation, Send):
                        result = self._node(operation.address).send(operation)
                    elif isinstance(operation, Finish):
                        result = self.run(operation.flow)
                    elif isinstance(operation, Later):
                        self._later.add(operation)
                    elif stop is None:
                        time.sleep(operation.seconds)
                    elif stop.wait(operation.seconds):
                        flow.close()
                        return None
                except BaseException as error:
                    operation = flow.throw(error)
                else:
                    operation = flow.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def enter(self, opened: Flow[None], begin: Callable[[], None], abandon: Callable[[], Flow[None]]) -> None:
        """Opens what a block gets. If a signal raises an exception meanwhile, or no thread can be started, what the server
        may have granted is given back."""
        try:
            self.run(opened)
            begin()
        except RateLimitError:
            raise
        except BaseException:
            self.run(abandon())
            raise

    def leave(self, closed: Callable[[bool], Flow[None]]) -> None:
        """Ends what a block had. If a signal raises an exception meanwhile, this begins again."""
        try:
            self.run(closed(False))
        except BaseException:
            self.run(closed(True))
            raise

    def keep(self, lease: LeaseState, stop: threading.Event) -> None:
        """Starts a thread that renews a lease until `stop` is set."""
        arguments = (lease.flows.heartbeat(lease), stop)
        threading.Thread(target=self.run, args=arguments, daemon=True, name="redis-rl-lease").start()

    def _node(self, address: Address | None) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.setdefault(address, _Node(self.connector(address), self._most))
        return node

    def connector(self, address: Address | None, **more: Any) -> Callable[[], Any]:
        client = self._client
        if address is None:
            pool = client.connection_pool
        else:
            some = next(iter(client.nodes_manager.nodes_cache.values()))
            pool = client.get_redis_connection(some).connection_pool
        kwargs = _wire.settings(pool.connection_kwargs, Retry(NoBackoff(), 0))
        if address is not None:
            kwargs["host"], kwargs["port"] = address
        kwargs.update(more)
        return lambda: pool.connection_class(**kwargs)

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.end_waits()
        self._later.close()
        for node in list(self._nodes.values()):
            node.drop()


class _Later:
    """Flows that run later. A thread waits for them as long as there are any."""

    def __init__(self, io: SyncIO) -> None:
        self._io = io
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        # When each is to run, by time.monotonic(), with the first one at the end.
        self._flows: list[tuple[float, Flow[Any]]] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def add(self, later: Later) -> None:
        if self._pid != os.getpid():
            # They are those of the process that has forked this one.
            self._forget()
        with self._changed:
            if self._closing:
                # It ran for the last time just now.
                return
            self._flows.append((time.monotonic() + later.seconds, later.flow))
            self._flows.sort(key=lambda each: -each[0])
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="redis-rl-later")
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._flows:
                    self._thread = None
                    return
                left = self._flows[-1][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                _, flow = self._flows.pop()
            try:
                self._io.run(flow)
            except Exception as error:
                log.warning("a release failed: %r", error)

    def close(self) -> None:
        """Runs all of them now."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            flows, self._flows = self._flows, []
            thread = self._thread
            self._changed.notify()
        try:
            for _, flow in flows:
                self._io.run(flow)
            if thread is not None:
                # It has at most one call under way.
                thread.join()
        finally:
            with self._changed:
                self._closing = False


class _Limited:
    def __init__(self, limits: SyncLimits, name: str, policy: Policy) -> None:
        self.limits = limits
        self._flows = LimitFlows(limits._core, name, policy)
        self._io = limits._io

    @property
    def name(self) -> str:
        return self._flows.name

    @property
    def policy(self) -> Policy:
        return self._flows.policy

    def full_key(self, key: Key) -> bytes:
        """The key on the server."""
        return self._flows.full_key(key)

    def _run(self, flow: Flow[T]) -> T:
        return self._io.run(flow)  # type: ignore[return-value]

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """The decision that a call would get. Takes nothing."""
        return self._run(self._flows.peek(key, cost))

    def release(self, key: Key, id: Key) -> Decision | None:
        """Gives back the whole charge of an id, or ends its lease. None: the server does not know the id, or no longer."""
        return self._run(self._flows.release(key, id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.policy!r}>"


class Limit(_Limited):
    """A limit with a rate. Make one with `Limits.limit`."""

    def take(self, key: Key, cost: int = 1) -> Decision:
        """Takes `cost` units, or none."""
        return self._run(self._flows.take(key, cost))

    def take_up_to(self, key: Key, units: int) -> Decision:
        """Takes as many units as fit, at most `units`."""
        return self._run(self._flows.amount(key, units, "UPTO"))

    def force(self, key: Key, units: int) -> Decision:
        """Takes all units, whatever the state. What exceeds the limit is a debt."""
        return self._run(self._flows.amount(key, units, "FORCE"))

    def refund(self, key: Key, units: int) -> Decision:
        """Gives back at most this many of the units in use."""
        return self._run(self._flows.amount(key, units, "REFUND"))

    def until(self, key: Key, time: Any, cost: int = 1) -> Decision:
        """Takes units from a window that ends at `time`, a Unix time or a datetime. Only for Fixed."""
        return self._run(self._flows.until(key, time, cost))

    def wait(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Waits in line for the units, first come first served over all processes, for at most `seconds`."""
        return self._run(self._flows.wait(key, seconds, cost))

    def reserve(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Books units that will be free within `seconds`, and sleeps until they are."""
        return self._run(self._flows.reserve(key, seconds, cost))

    def settle(self, key: Key, id: Key, units: int) -> Decision | None:
        """Sets the charge of an id to what it really cost. None: the server does not know the id, or no longer."""
        return self._run(self._flows.settle(key, id, units))

    def charge(self, key: Key, estimate: int, wait: Duration | None = None, id: Key | None = None) -> Charge:
        """A context manager that charges an estimate, and settles it at the end of its block."""
        return Charge(self, key, estimate, wait, id)

    def protect(self, key: Key, cost: int = 1, wait: Duration | None = None) -> Guard:
        """A context manager, or a decorator, that takes units or raises RateLimited. The key of a decorator is a format
        string over the arguments of the function."""
        return Guard(self, key, cost, wait)


class LeaseLimit(_Limited):
    """A limit of how much runs at the same time. Make one with `Limits.limit` and a Lease."""

    def hold(self, key: Key, wait: Duration | None = None, cost: int = 1, id: Key | None = None) -> HeldLease:
        """A context manager that holds a lease while its block runs."""
        return HeldLease(self, key, wait, cost, id)

    def renew(self, key: Key, id: Key) -> Decision:
        """Renews the lease of an id. Denied: the lease has ended."""
        return self._run(self._flows.renew(key, id))


class Charge(ChargeState):
    """What the block of `charge` gets. Set `used`, or leave the estimate as it is."""

    def __init__(self, limit: Limit, key: Key, estimate: int, wait: Duration | None, id: Key | None) -> None:
        super().__init__(limit._flows, key, estimate, id)
        self._wait_us = checked_wait(wait)
        self._io = limit._io

    def settle(self, units: int) -> None:
        """Settles the charge now, not at the end of the block."""
        self.used = units
        self._io.run(self.flows.close_charge(self, False))

    def release(self) -> None:
        """Gives everything back now."""
        self.settle(0)

    def __enter__(self) -> Charge:
        opened = self.flows.open_charge(self, self._wait_us)
        self._io.enter(opened, lambda: None, lambda: self.flows.abandon(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._io.leave(lambda again: self.flows.close_charge(self, kind is not None, again))


class HeldLease(LeaseState):
    """What the block of `hold` gets. A thread renews the lease at each third of its ttl. A block that takes long should call
    `check` now and then, because nothing can stop it from outside."""

    def __init__(self, limit: LeaseLimit, key: Key, wait: Duration | None, cost: int, id: Key | None) -> None:
        super().__init__(limit._flows, key, cost, id)
        self._wait_us = checked_wait(wait)
        self._io = limit._io
        self._stop = threading.Event()

    def renew(self) -> None:
        """Renews the lease now. Raises LeaseLost if it is lost."""
        self._io.run(self.flows.renew_lease(self))

    def __enter__(self) -> HeldLease:
        self._io.enter(self.flows.open_lease(self, self._wait_us), self._begin, self._abandon)
        return self

    def _begin(self) -> None:
        if self.decision.counted:
            self._io.keep(self, self._stop)

    def _abandon(self) -> Flow[None]:
        self._stop.set()
        return self.flows.abandon(self)

    def _close(self, again: bool) -> Flow[None]:
        self._stop.set()
        return self.flows.close_lease(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._io.leave(self._close)
        if kind is None:
            self.check()


class Admission(AdmissionState):
    """What the block of `admit` gets. Set `used`, or leave the estimate as it is. Threads renew its leases at each third of
    their ttl. A block that takes long should call `check` now and then, because nothing can stop it from outside."""

    def __init__(
        self, limits: SyncLimits, rules: Iterable[Rule], estimate: int | None, wait: Duration | None, id: Key | None
    ) -> None:
        super().__init__(limits._core, rules_of(rules), estimate, id)
        self._wait_us = checked_wait(wait)
        self._io = limits._io
        self._stop = threading.Event()

    def __enter__(self) -> Admission:
        self._io.enter(self.core.open_admission(self, self._wait_us), self._begin, self._abandon)
        return self

    def _begin(self) -> None:
        if self.decision.counted:
            for lease in self.leases:
                self._io.keep(lease, self._stop)

    def _abandon(self) -> Flow[None]:
        self._stop.set()
        return self.core.abandon(self.call)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        def close(again: bool) -> Flow[None]:
            self._stop.set()
            return self.core.close_admission(self, kind is not None, again)

        self._io.leave(close)
        if kind is None:
            self.check()


class CachedLimit(Limit):
    """A limit that remembers denials. Make one with `Limits.cached`. `take`, and `protect` without a wait, do not ask the
    server about a key that it has denied, until a unit is free or the server says that the key has changed."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit.limits, limit.name, limit.policy)
        self._denials = Denials()
        self._watchers: dict[Address | None, _Watcher] = {}
        self._watchers_lock = threading.Lock()

    def take(self, key: Key, cost: int = 1) -> Decision:
        full, units = self._flows.full_key(key), checked_cost(cost)
        denial = self._denials.find(full, units)
        if denial is not None:
            return denial
        decision = super().take(key, cost)
        if worth_watching(decision):
            self._watcher(full).watch(self._flows, full, units)
        return decision

    def _watcher(self, key: bytes) -> _Watcher:
        topology = self._io.topology
        address = topology.address(key_slot(key), False) if topology else None
        with self._watchers_lock:
            watcher = self._watchers.get(address)
            if watcher is None or watcher.pid != os.getpid():
                if watcher is not None:
                    self._denials.drop(None)
                watcher = self._watchers[address] = _Watcher(self._io, address, self._denials, self._flows.core.patience)
            return watcher

    def close(self) -> None:
        """Forgets all denials, and closes the connections that watch the keys."""
        with self._watchers_lock:
            watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher.lose()
        self._denials.drop(None)


class _Watcher:
    """Two connections to one server: on one, denied keys are read, so that the server tracks them; to the other it sends the
    names of those that have changed. RESP2, which all versions of redis-py read alike."""

    def __init__(self, io: SyncIO, address: Address | None, denials: Denials, patience: float) -> None:
        self._connect = io.connector(address, protocol=2, decode_responses=False)
        self._denials = denials
        self._patience = patience
        self._lock = threading.Lock()
        self._asking: Any = None
        self._listening: Any = None
        self._next_try = 0.0
        self.pid = os.getpid()

    def watch(self, limit: LimitFlows, key: bytes, cost: int) -> None:
        """Reads a denied key, and remembers the denial. If another thread does so just now, this one does not wait for it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._asking is None:
                if time.monotonic() < self._next_try:
                    return
                self._start()
            denial = self._denials.begin(key, cost)
            decision = None
            try:
                decision = limit.decision(self._ask(self._asking, *peek_words(limit, key, cost)))
            except redis.ResponseError:
                pass
            finally:
                self._denials.end(key, denial, decision)
        except (redis.RedisError, OSError, RateLimitError) as error:
            log.info("%s: denials are not remembered: %s", limit.name, error)
            self._next_try = time.monotonic() + 1
            self._lose()
        finally:
            self._lock.release()

    def _new(self) -> Any:
        connection = self._connect()
        connection.socket_timeout = connection.socket_connect_timeout = self._patience
        connection.connect()
        return connection

    def _ask(self, connection: Any, *words: Any) -> Any:
        connection.send_command(*words, check_health=False)
        return connection.read_response()

    def _start(self) -> None:
        self._listening = self._new()
        id = self._ask(self._listening, "CLIENT", "ID")
        self._ask(self._listening, "SUBSCRIBE", CHANNEL)
        self._asking = self._new()
        self._ask(self._asking, "CLIENT", "TRACKING", "ON", "REDIRECT", id)
        arguments = (self._listening, self._asking)
        threading.Thread(target=self._listen, args=arguments, daemon=True, name="redis-rl-denials").start()

    def _listen(self, listening: Any, asking: Any) -> None:
        """Reads the names of the keys that have changed, until one of the connections is lost or closed by `lose`."""
        poll = select.poll()
        asked = False
        try:
            sockets = listening._sock, asking._sock
            poll.register(sockets[0], select.POLLIN)
            # What comes on the other one is read by `watch`. Only its end matters here.
            poll.register(sockets[1], getattr(select, "POLLRDHUP", 0))
            while listening is self._listening:
                if not listening._parser.can_read(0):
                    events = poll.poll(PING_S * 1000)
                    if any(number == sockets[1].fileno() for number, _ in events):
                        break
                    if not events:
                        if asked:
                            break
                        asked = True
                        listening.send_command("PING", check_health=False)
                        with self._lock:
                            if asking is self._asking:
                                self._ask(asking, "PING")
                        continue
                self._denials.take_message(listening.read_response())
                asked = False
        except Exception:  # Whatever it is: the connection can't be read any more.
            pass
        with self._lock:
            if listening is self._listening:
                self._lose()
        # Only here, because a connection of redis-py connects again when it is used after it was closed.
        listening.disconnect()

    def lose(self) -> None:
        with self._lock:
            self._lose()

    def _lose(self) -> None:
        """The server tells nothing any more: no denial is certain."""
        asking, listening = self._asking, self._listening
        self._asking = self._listening = None
        self._denials.drop(None)
        if listening is not None:
            # Ends the thread that listens.
            with contextlib.suppress(OSError, AttributeError):
                listening._sock.shutdown(socket.SHUT_RDWR)
        if asking is not None:
            asking.disconnect()
        elif listening is not None:
            # The thread was not started.
            listening.disconnect()


class LimitWallet:
    """Units that this process has fetched. Make one with `Limits.wallet`."""

    def __init__(self, limit: Limit, batch: int, idle: float) -> None:
        if not isinstance(limit, Limit):
            raise InvalidLimit("a wallet is for a limit with a rate")
        self._limit = limit
        self._io = limit._io
        self._wallet = Wallet(limit._flows, batch, idle)
        self._pid = os.getpid()
        self._stop: threading.Event | None = None

    def take(self, key: Key, cost: int = 1) -> Decision:
        """Takes units from those that the process has fetched, and fetches more if they are not enough."""
        full, units = self._limit._flows.full_key(key), checked_cost(cost)
        wallet = self._wallet
        if units > self._limit.policy.capacity:
            # Never granted, and nothing to fetch for.
            return self._limit.peek(key, cost)
        if self._pid != os.getpid():
            # The units are those of the process that has forked this one.
            wallet.forget()
            self._pid, self._stop = os.getpid(), None
        waited = False
        while True:
            now = time.monotonic()
            with wallet.lock:
                purse = wallet.purse(full)
                if purse.spend(units, now):
                    return wallet.granted(purse, units, now)
                fetching = purse.fetching
                fail = waited and purse.short and fetching is None and purse.decision is not None
                if fetching is not None:
                    purse.wanted += units
                elif not fail:
                    mine = purse.fetching = threading.Event()
                if self._stop is None:
                    self._stop = threading.Event()
                    threading.Thread(target=self._tidy, args=(self._stop,), daemon=True, name="redis-rl-wallet").start()
            if fail:
                # Another thread has fetched all that there was, while this one waited.
                return self._io.run(wallet.denial(full, purse, units))  # type: ignore[return-value]
            if fetching is not None:
                fetching.wait()
                with wallet.lock:
                    purse.wanted -= units
                waited = True
                continue
            try:
                self._io.run(wallet.fetch(full, purse, units))
            except Down as down:
                self._limit._flows.core.let_pass(down, self._limit.name)
                return uncounted(units, self._limit.policy, self._limit.name)
            finally:
                with wallet.lock:
                    purse.fetching = None
                mine.set()
            now = time.monotonic()
            with wallet.lock:
                short, spent = purse.short, purse.spend(units, now)
                decision = wallet.granted(purse, units, now) if spent else None
            if wallet.closed:
                self.give_back()
            if decision is not None:
                return decision
            if short:
                return self._io.run(wallet.denial(full, purse, units))  # type: ignore[return-value]

    def _tidy(self, stop: threading.Event) -> None:
        while not stop.wait(self._wallet.idle / 2):
            self.give_back(everything=False)

    def give_back(self, everything: bool = True) -> None:
        """Gives units back that were not spent: all of them, or those of idle keys."""
        self._io.run(self._wallet.give_back(self._wallet.to_give_back(all=everything)))

    def close(self) -> None:
        """Gives all units back. The wallet can't be used any more."""
        with self._wallet.lock:
            self._wallet.closed = True
        if self._stop is not None:
            self._stop.set()
        self.give_back()

    def __enter__(self) -> LimitWallet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Guard:
    """What `protect` returns."""

    def __init__(self, limit: Limit, key: Key, cost: int, wait: Duration | None) -> None:
        self._limit = limit
        self._key = checked_key(key) and key
        self._cost = checked_cost(cost)
        self._wait_us = checked_wait(wait)
        self._wait = wait

    def take(self, key: Key) -> Decision:
        limit = self._limit
        return (
            limit.wait(key, self._wait or 0, self._cost) if self._wait_us else limit.take(key, self._cost)
        ).raise_if_denied()

    def __enter__(self) -> Decision:
        return self.take(self._key)

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):
            raise TypeError("a limit of redis.Redis can't guard an async function: use redis.asyncio.Redis")
        key_of = key_format(self._key, function)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            self.take(key_of(args, kwargs))
            return function(*args, **kwargs)

        return limited


def key_format(key: Key, function: Callable[..., Any]) -> Callable[[Any, Any], Key]:
    """What makes the key of a decorated function from its arguments."""
    if isinstance(key, bytes):
        return lambda args, kwargs: key
    signature = inspect.signature(function)
    text = key
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise InvalidKey(f"{text!r} is no format string: {error}") from None
    for field in fields:
        # Of `user.id` and `user[id]`, `user`.
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if name not in signature.parameters:
            raise InvalidKey(f"{text!r}: the function has no argument {name!r}")

    def key_of(args: Any, kwargs: Any) -> Key:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return text.format(**bound.arguments)

    return key_of


class SyncLimits:
    """What `Limits` returns for a client of threads."""

    def __init__(
        self,
        client: Any,
        prefix: str = "",
        on_down: Literal["open", "closed"] = "closed",
        patience: float = 1.0,
        peek_replica: bool = False,
        max_connections: int = 64,
    ) -> None:
        self._io = SyncIO(client, max_connections)
        self._core = Core(prefix, on_down, patience, self._io.topology, peek_replica and self._io.cluster)

    @overload
    def limit(self, name: str, policy: RatePolicy) -> Limit: ...
    @overload
    def limit(self, name: str, policy: Lease) -> LeaseLimit: ...
    def limit(self, name: str, policy: Policy) -> Limit | LeaseLimit:
        """A limit of this name. The key on the server is the prefix, the name, a colon, and the key of the call."""
        return LeaseLimit(self, name, policy) if isinstance(policy, Lease) else Limit(self, name, policy)

    def all(
        self,
        rules: Iterable[tuple[Limit | LeaseLimit, Key, int]],
        wait: Duration | None = None,
        id: Key | None = None,
    ) -> AllDecision:
        """Charges several limits, all or none. With `wait`, waits until all of them grant the call at the same moment. An
        id names the charge on each key, to settle or to release it there."""
        listed = [(limit._flows, key, cost) for limit, key, cost in rules]
        return self._io.run(self._core.all(listed, wait, id))  # type: ignore[return-value]

    def admit(
        self,
        rules: Iterable[Rule],
        estimate: int | None = None,
        wait: Duration | None = None,
        id: Key | None = None,
    ) -> Admission:
        """A context manager that charges several limits, all or none, and settles them at the end of its block. A rule is a
        limit, a key, and perhaps a cost. One without a cost is charged the estimate, and settled to what was used. Leases are
        renewed while the block runs, and released at its end."""
        return Admission(self, rules, estimate, wait, id)

    def cached(self, limit: Limit) -> CachedLimit:
        """The same limit, which remembers denials: see CachedLimit."""
        return CachedLimit(limit)

    def wallet(self, limit: Limit, batch: int = 100, idle: float = 1.0) -> LimitWallet:
        """Decides in the process, from `batch` units of a key that are fetched at once. What is left when a key was idle
        for `idle` seconds is given back. Other processes find fewer units meanwhile; never more are spent than the server
        has charged."""
        return LimitWallet(limit, batch, idle)

    def close(self) -> None:
        """Ends the calls that wait, which raise Down, gives back what calls without a reply may have been granted, and closes
        the connections of this object. The client stays as it is."""
        self._core.closings += 1
        self._io.close()

    def __enter__(self) -> SyncLimits:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
