"""Limits over redis-py for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from . import _wire
from ._decision import AllDecision, Decision, uncounted
from ._errors import Down, InvalidLimit, LeaseLost, RateLimitError
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
from ._sync import key_format
from ._topology import Address, key_slot

if sys.version_info >= (3, 11, 3):
    from asyncio import timeout  # type: ignore[attr-defined,unused-ignore]
else:  # redis-py needs this package, too.
    from async_timeout import timeout  # type: ignore[import-not-found,unused-ignore]

T = TypeVar("T")
P = ParamSpec("P")
# A rule of `admit`.
Rule: TypeAlias = "tuple[AsyncLimit | AsyncLeaseLimit, Key] | tuple[AsyncLimit | AsyncLeaseLimit, Key, int]"


@contextlib.asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """Ends its block with redis-py's TimeoutError. Not asyncio.wait_for: on Python 3.11 and older, that swallows a
    cancellation which arrives at the moment when its work is done. A call that was cancelled would go on waiting."""
    try:
        async with timeout(seconds):
            yield
    except asyncio.TimeoutError:
        raise redis.exceptions.TimeoutError(f"it took longer than {seconds:.3g} s") from None


class _Node:
    """The connections to one server. At most `most` of them carry calls that do not wait; a call that waits has its own."""

    def __init__(self, connect: Callable[[], Any], most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[Any] = []
        self._places = asyncio.Semaphore(most)
        # Those on which calls wait, and how many times they were ended.
        self._waiting: set[Any] = set()
        self._ended = 0
        # The time-out of the client.
        self._own: float | None = None

    async def send(self, operation: Send) -> Any:
        if operation.wait is not None:
            return await self._send(operation)
        places = self._places
        if places.locked():
            try:
                async with _within(max(0.0, operation.deadline - time.monotonic())):
                    await places.acquire()
            except redis.exceptions.TimeoutError:
                error = redis.exceptions.TimeoutError(f"all {self._most} connections are in use")
                raise Lost(error, False) from None
        else:
            await places.acquire()
        try:
            return await self._send(operation)
        finally:
            places.release()

    async def _send(self, operation: Send) -> Any:
        connection = None
        sent = False
        ended = self._ended
        try:
            connection = await self._take()
            if connection is None:
                connection = self._connect()
                self._own = connection.socket_timeout
                # With a time-out, redis-py sends by asyncio.wait_for: see _within.
                connection.socket_timeout = None
                try:
                    async with _within(self._left(operation)):
                        await connection.connect()
                except redis.ConnectionError as error:
                    # redis-py wraps some replies of the server (NOAUTH).
                    if isinstance(error.__cause__, redis.RedisError) and is_reply(error.__cause__):
                        raise error.__cause__ from None
                    raise
            async with _within(self._left(operation)):
                sent = True
                if operation.prelude is not None:
                    await connection.send_command(operation.prelude, check_health=False)
                await connection.send_command(*operation.words, check_health=False)
                if operation.prelude is not None:
                    await connection.read_response()
                if operation.wait is None:
                    reply = await connection.read_response()
            if operation.wait is not None:
                self._waiting.add(connection)
                if ended != self._ended:
                    raise redis.ConnectionError("closed")
                async with _within(operation.wait + MARGIN_S):
                    reply = await connection.read_response()
        except BaseException as error:
            reply = isinstance(error, Exception) and is_reply(error)
            if reply and keeps_connection(error):  # type: ignore[arg-type]
                await self._give(connection)
                raise
            if connection is not None:
                await _disconnect(connection)
            lost = isinstance(error, (redis.RedisError, OSError)) and not isinstance(error, redis.DataError)
            if lost:
                # Not if the task was cancelled: that says nothing about the server.
                await self.drop()
            # An error reply while connecting (NOAUTH, LOADING) is also an answer of the server.
            if reply or not lost:
                raise
            raise Lost(error, sent) from error
        finally:
            self._waiting.discard(connection)
        await self._give(connection)
        return reply

    def end_waits(self) -> None:
        self._ended += 1
        for connection in self._waiting:
            # The task that waits reads the end of the connection.
            if connection._writer is not None:
                connection._writer.close()

    def _left(self, operation: Send) -> float:
        left = operation.deadline - time.monotonic()
        if left <= 0:
            raise redis.exceptions.TimeoutError("no connection in time")
        return left if self._own is None else min(self._own, left)

    async def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            reader, writer = connection._reader, connection._writer
            if reader is not None and not reader.at_eof() and not reader._buffer and writer is not None:
                if not _wire.is_stale(writer.get_extra_info("socket")):
                    return connection
            await _disconnect(connection)
        return None

    async def _give(self, connection: Any) -> None:
        if len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            await _disconnect(connection)

    async def drop(self) -> None:
        """Closes the connections that nobody uses: they lead to the same server as one that has failed."""
        while self._idle:
            await _disconnect(self._idle.pop())


async def _disconnect(connection: Any) -> None:
    with contextlib.suppress(redis.RedisError, OSError):
        await connection.disconnect(nowait=True)


class AsyncIO:
    """Does what the flows say."""

    def __init__(self, client: Any, most: int) -> None:
        self.cluster = isinstance(client, redis.asyncio.RedisCluster)
        self.topology = _wire.topology_of(client) if self.cluster else None
        self._client = client
        self._most = most
        self._nodes: dict[Address | None, _Node] = {}
        # Flows that run to their end although their task was cancelled.
        self.finishing: set[asyncio.Task[Any]] = set()
        # Flows that run later.
        self._later: dict[asyncio.TimerHandle, Flow[Any]] = {}
        # One for each flow that waits, or has waited: done when the flow has ended.
        self._waits: set[asyncio.Future[None]] = set()
        self._closing = False

    async def run(self, flow: Flow[T]) -> T:
        waits: asyncio.Future[None] | None = None
        try:
            operation = next(flow)
            while True:
                try:
                    result: Any = None
                    if isinstance(operation, Send):
                        if operation.wait is not None and waits is None:
                            waits = asyncio.get_running_loop().create_future()
                            self._waits.add(waits)
                        result = await self._node(operation.address).send(operation)
                    elif isinstance(operation, Finish):
                        result = await self._finish(operation.flow)
                    elif isinstance(operation, Later):
                        self._run_later(operation)
                    else:
                        await asyncio.sleep(operation.seconds)
                except BaseException as error:
                    operation = flow.throw(error)
                else:
                    operation = flow.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            if waits is not None:
                self._waits.discard(waits)
                if not waits.done():
                    waits.set_result(None)

    async def _finish(self, flow: Flow[T]) -> T:
        return await asyncio.shield(self._started(flow))

    def _started(self, flow: Flow[T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(self.run(flow))
        self.finishing.add(task)
        task.add_done_callback(self.finishing.discard)
        return task

    def _run_later(self, later: Later) -> None:
        if self._closing:
            # It ran for the last time just now.
            return

        def start() -> None:
            self._started(self._later.pop(handle))

        handle = asyncio.get_running_loop().call_later(later.seconds, start)
        self._later[handle] = later.flow

    def _node(self, address: Address | None) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(self.connector(address), self._most)
        return node

    def connector(self, address: Address | None, **more: Any) -> Callable[[], Any]:
        if address is None:
            pool = self._client.connection_pool
            connection_class, kwargs = pool.connection_class, pool.connection_kwargs
        else:
            manager = self._client.nodes_manager
            node = next(iter({**manager.startup_nodes, **manager.nodes_cache}.values()))
            connection_class, kwargs = node.connection_class, node.connection_kwargs
        kwargs = _wire.settings(kwargs, Retry(NoBackoff(), 0))
        if address is not None:
            kwargs["host"], kwargs["port"] = address
        kwargs.update(more)
        return lambda: connection_class(**kwargs)

    async def close(self) -> None:
        for node in self._nodes.values():
            node.end_waits()
        if self._waits:
            await asyncio.wait(self._waits)
        self._closing = True
        try:
            later, self._later = self._later, {}
            for handle, flow in later.items():
                handle.cancel()
                self._started(flow)
            while self.finishing:
                await asyncio.gather(*self.finishing, return_exceptions=True)
        finally:
            self._closing = False
        for node in self._nodes.values():
            await node.drop()


class _AsyncLimited:
    def __init__(self, limits: AsyncLimits, name: str, policy: Policy) -> None:
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

    async def peek(self, key: Key, cost: int = 1) -> Decision:
        """The decision that a call would get. Takes nothing."""
        return await self._io.run(self._flows.peek(key, cost))

    async def release(self, key: Key, id: Key) -> Decision | None:
        """Gives back the whole charge of an id, or ends its lease. None: the server does not know the id, or no longer."""
        return await self._io.run(self._flows.release(key, id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.policy!r}>"


class AsyncLimit(_AsyncLimited):
    """A limit with a rate. Make one with `Limits.limit`."""

    async def take(self, key: Key, cost: int = 1) -> Decision:
        """Takes `cost` units, or none."""
        return await self._io.run(self._flows.take(key, cost))

    async def take_up_to(self, key: Key, units: int) -> Decision:
        """Takes as many units as fit, at most `units`."""
        return await self._io.run(self._flows.amount(key, units, "UPTO"))

    async def force(self, key: Key, units: int) -> Decision:
        """Takes all units, whatever the state. What exceeds the limit is a debt."""
        return await self._io.run(self._flows.amount(key, units, "FORCE"))

    async def refund(self, key: Key, units: int) -> Decision:
        """Gives back at most this many of the units in use."""
        return await self._io.run(self._flows.amount(key, units, "REFUND"))

    async def until(self, key: Key, time: Any, cost: int = 1) -> Decision:
        """Takes units from a window that ends at `time`, a Unix time or a datetime. Only for Fixed."""
        return await self._io.run(self._flows.until(key, time, cost))

    async def wait(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Waits in line for the units, first come first served over all processes, for at most `seconds`. A task that is
        cancelled leaves the line."""
        return await self._io.run(self._flows.wait(key, seconds, cost))

    async def reserve(self, key: Key, seconds: Duration, cost: int = 1) -> Decision:
        """Books units that will be free within `seconds`, and sleeps until they are."""
        return await self._io.run(self._flows.reserve(key, seconds, cost))

    async def settle(self, key: Key, id: Key, units: int) -> Decision | None:
        """Sets the charge of an id to what it really cost. None: the server does not know the id, or no longer."""
        return await self._io.run(self._flows.settle(key, id, units))

    def charge(self, key: Key, estimate: int, wait: Duration | None = None, id: Key | None = None) -> AsyncCharge:
        """A context manager that charges an estimate, and settles it at the end of its block."""
        return AsyncCharge(self, key, estimate, wait, id)

    def protect(self, key: Key, cost: int = 1, wait: Duration | None = None) -> AsyncGuard:
        """A context manager, or a decorator, that takes units or raises RateLimited. The key of a decorator is a format
        string over the arguments of the function."""
        return AsyncGuard(self, key, cost, wait)


class AsyncLeaseLimit(_AsyncLimited):
    """A limit of how much runs at the same time. Make one with `Limits.limit` and a Lease."""

    def hold(self, key: Key, wait: Duration | None = None, cost: int = 1, id: Key | None = None) -> AsyncHeldLease:
        """A context manager that holds a lease while its block runs."""
        return AsyncHeldLease(self, key, wait, cost, id)

    async def renew(self, key: Key, id: Key) -> Decision:
        """Renews the lease of an id. Denied: the lease has ended."""
        return await self._io.run(self._flows.renew(key, id))


class AsyncCharge(ChargeState):
    """What the block of `charge` gets. Set `used`, or leave the estimate as it is."""

    def __init__(self, limit: AsyncLimit, key: Key, estimate: int, wait: Duration | None, id: Key | None) -> None:
        super().__init__(limit._flows, key, estimate, id)
        self._wait_us = checked_wait(wait)
        self._io = limit._io

    async def settle(self, units: int) -> None:
        """Settles the charge now, not at the end of the block."""
        self.used = units
        await self._io.run(self.flows.close_charge(self, False))

    async def release(self) -> None:
        """Gives everything back now."""
        await self.settle(0)

    async def __aenter__(self) -> AsyncCharge:
        await self._io.run(self.flows.open_charge(self, self._wait_us))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._io.run(self.flows.close_charge(self, kind is not None))


class _Heartbeats:
    """Renew leases while a block runs. When one is lost, they cancel the block."""

    def __init__(self, io: AsyncIO) -> None:
        self._io = io
        self._tasks: list[asyncio.Task[None]] = []
        self._body: asyncio.Task[Any] | None = None
        # Whether a heartbeat has cancelled the block.
        self._cancelled = False
        # The cancellations of the task when the block began. After a TaskGroup whose error was caught, Python 3.11 and 3.12
        # leave one.
        self._before = 0

    def start(self, leases: Iterable[LeaseState]) -> None:
        self._body = asyncio.current_task()
        if sys.version_info >= (3, 11) and self._body is not None:
            self._before = self._body.cancelling()
        for lease in leases:
            task = asyncio.ensure_future(self._io.run(lease.flows.heartbeat(lease)))
            task.add_done_callback(functools.partial(self._ended, lease))
            self._tasks.append(task)

    def _ended(self, lease: LeaseState, heartbeat: asyncio.Task[None]) -> None:
        if self._body is not None and not heartbeat.cancelled() and lease.lost and not self._cancelled:
            self._cancelled = True
            self._body.cancel()

    async def stop(self, kind: type[BaseException] | None) -> bool:
        """Returns whether the block ends normally, or only because a heartbeat has cancelled it."""
        body, self._body = self._body, None
        for task in self._tasks:
            task.cancel()
        others = False
        if self._cancelled and body is not None:
            if sys.version_info >= (3, 11):
                others = body.uncancel() > self._before
            if kind is None or not issubclass(kind, asyncio.CancelledError):
                # The block has ended before its cancellation has reached it.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        ours = self._cancelled and not others and kind is not None and issubclass(kind, asyncio.CancelledError)
        return ours or kind is None


class AsyncHeldLease(LeaseState):
    """What the block of `hold` gets. A task renews the lease at each third of its ttl. When the lease is lost, the block is
    cancelled at its next `await`, and LeaseLost is raised."""

    def __init__(self, limit: AsyncLeaseLimit, key: Key, wait: Duration | None, cost: int, id: Key | None) -> None:
        super().__init__(limit._flows, key, cost, id)
        self._wait_us = checked_wait(wait)
        self._io = limit._io
        self._heartbeats = _Heartbeats(limit._io)

    async def renew(self) -> None:
        """Renews the lease now. Raises LeaseLost if it is lost."""
        await self._io.run(self.flows.renew_lease(self))

    async def __aenter__(self) -> AsyncHeldLease:
        await self._io.run(self.flows.open_lease(self, self._wait_us))
        if self.decision.counted:
            self._heartbeats.start([self])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ours = await self._heartbeats.stop(kind)
        await self._io.run(self.flows.close_lease(self))
        if ours:
            try:
                self.check()
            except LeaseLost as lost:
                raise lost from None


class AsyncAdmission(AdmissionState):
    """What the block of `admit` gets. Set `used`, or leave the estimate as it is. Tasks renew its leases at each third of
    their ttl. When one is lost, the block is cancelled at its next `await`, and LeaseLost is raised."""

    def __init__(
        self, limits: AsyncLimits, rules: Iterable[Rule], estimate: int | None, wait: Duration | None, id: Key | None
    ) -> None:
        super().__init__(limits._core, rules_of(rules), estimate, id)
        self._wait_us = checked_wait(wait)
        self._io = limits._io
        self._heartbeats = _Heartbeats(limits._io)

    async def __aenter__(self) -> AsyncAdmission:
        await self._io.run(self.core.open_admission(self, self._wait_us))
        if self.decision.counted:
            self._heartbeats.start(self.leases)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ours = await self._heartbeats.stop(kind)
        await self._io.run(self.core.close_admission(self, kind is not None))
        if ours:
            try:
                self.check()
            except LeaseLost as lost:
                raise lost from None


class AsyncCachedLimit(AsyncLimit):
    """A limit that remembers denials. Make one with `Limits.cached`. `take`, and `protect` without a wait, do not ask the
    server about a key that it has denied, until a unit is free or the server says that the key has changed."""

    def __init__(self, limit: AsyncLimit) -> None:
        super().__init__(limit.limits, limit.name, limit.policy)
        self._denials = Denials()
        self._watchers: dict[Address | None, _Watcher] = {}

    async def take(self, key: Key, cost: int = 1) -> Decision:
        full, units = self._flows.full_key(key), checked_cost(cost)
        denial = self._denials.find(full, units)
        if denial is not None and all([await watcher.is_alive() for watcher in self._watchers.values()]):
            return denial
        decision = await super().take(key, cost)
        if worth_watching(decision):
            topology = self._io.topology
            address = topology.address(key_slot(full), False) if topology else None
            watcher = self._watchers.get(address)
            if watcher is None:
                patience = self._flows.core.patience
                watcher = self._watchers[address] = _Watcher(self._io, address, self._denials, patience)
            await watcher.watch(self._flows, full, units)
        return decision

    async def aclose(self) -> None:
        """Forgets all denials, and closes the connections that watch the keys."""
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            await watcher.lose()
        self._denials.drop(None)


class _Watcher:
    """Two connections to one server: on one, denied keys are read, so that the server tracks them; to the other it sends the
    names of those that have changed. RESP2, which all versions of redis-py read alike."""

    def __init__(self, io: AsyncIO, address: Address | None, denials: Denials, patience: float) -> None:
        self._connect = io.connector(address, protocol=2, decode_responses=False)
        self._denials = denials
        self._patience = patience
        self._busy = False
        self._asking: Any = None
        self._listening: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = True
        self._next_try = 0.0

    async def watch(self, limit: LimitFlows, key: bytes, cost: int) -> None:
        """Reads a denied key, and remembers the denial. If another task does so just now, this one does not wait for it."""
        if self._busy or (self._asking is None and time.monotonic() < self._next_try):
            return
        self._busy = True
        try:
            if self._asking is None:
                async with _within(self._patience):
                    await self._start()
            denial = self._denials.begin(key, cost)
            decision = None
            try:
                decision = limit.decision(await self._ask(self._asking, *peek_words(limit, key, cost)))
            except redis.ResponseError:
                pass
            finally:
                self._denials.end(key, denial, decision)
        except BaseException as error:
            # Also when the task is cancelled: then a reply may still come.
            self._next_try = time.monotonic() + 1
            await self.lose()
            if not isinstance(error, (redis.RedisError, OSError, asyncio.TimeoutError, RateLimitError, AttributeError)):
                raise
            log.info("%s: denials are not remembered: %s", limit.name, error)
        finally:
            self._busy = False

    async def _new(self) -> Any:
        connection = self._connect()
        # With a time-out, redis-py sends by asyncio.wait_for: see _within.
        connection.socket_timeout = None
        await connection.connect()
        return connection

    async def _ask(self, connection: Any, *words: Any) -> Any:
        async with _within(self._patience):
            await connection.send_command(*words, check_health=False)
            return await connection.read_response()

    async def _start(self) -> None:
        self._listening = await self._new()
        id = await self._ask(self._listening, "CLIENT", "ID")
        await self._ask(self._listening, "SUBSCRIBE", CHANNEL)
        self._asking = await self._new()
        await self._ask(self._asking, "CLIENT", "TRACKING", "ON", "REDIRECT", id)
        self._heard = True
        self._tasks = [
            asyncio.ensure_future(self._listen(self._listening)),
            asyncio.ensure_future(self._ping(self._listening)),
        ]

    async def _listen(self, connection: Any) -> None:
        try:
            while True:
                message = await connection.read_response()
                self._heard = True
                self._denials.take_message(message)
        except (redis.RedisError, OSError):
            await self._lost(connection)

    async def _ping(self, connection: Any) -> None:
        try:
            while self._heard:
                await asyncio.sleep(PING_S)
                self._heard = False
                await connection.send_command("PING", check_health=False)
                if self._asking is not None and not self._busy:
                    self._busy = True
                    try:
                        await self._ask(self._asking, "PING")
                    finally:
                        self._busy = False
                await asyncio.sleep(PING_S)
        except (redis.RedisError, OSError):
            pass
        await self._lost(connection)

    async def is_alive(self) -> bool:
        """Whether no connection has ended. The server says nothing when it no longer tracks for the one that asks."""
        for connection in (self._asking, self._listening):
            if connection is not None and (connection._reader is None or connection._reader.at_eof()):
                await self.lose()
                return False
        if self._asking is not None and not self._busy and _wire.is_stale(self._asking._writer.get_extra_info("socket")):
            await self.lose()
            return False
        return True

    async def _lost(self, connection: Any) -> None:
        if connection is self._listening:
            await self.lose()

    async def lose(self) -> None:
        """The server tells nothing any more: no denial is certain."""
        connections = self._asking, self._listening
        self._asking = self._listening = None
        self._denials.drop(None)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for connection in connections:
            if connection is not None:
                await _disconnect(connection)


class AsyncLimitWallet:
    """Units that this process has fetched. Make one with `Limits.wallet`."""

    def __init__(self, limit: AsyncLimit, batch: int, idle: float) -> None:
        if not isinstance(limit, AsyncLimit):
            raise InvalidLimit("a wallet is for a limit with a rate")
        self._limit = limit
        self._io = limit._io
        self._wallet = Wallet(limit._flows, batch, idle)
        self._pid = os.getpid()
        self._tidying: asyncio.Task[None] | None = None

    async def take(self, key: Key, cost: int = 1) -> Decision:
        """Takes units from those that the process has fetched, and fetches more if they are not enough."""
        full, units = self._limit._flows.full_key(key), checked_cost(cost)
        wallet = self._wallet
        if units > self._limit.policy.capacity:
            # Never granted, and nothing to fetch for.
            return await self._limit.peek(key, cost)
        if self._pid != os.getpid():
            # The units are those of the process that has forked this one.
            wallet.forget()
            self._pid, self._tidying = os.getpid(), None
        waited = False
        while True:
            now = time.monotonic()
            purse = wallet.purse(full)
            if purse.spend(units, now):
                return wallet.granted(purse, units, now)
            if purse.fetching is not None:
                purse.wanted += units
                try:
                    await asyncio.shield(purse.fetching)
                finally:
                    purse.wanted -= units
                waited = True
                continue
            if waited and purse.short and purse.decision is not None:
                # Another task has fetched all that there was, while this one waited.
                return await self._io.run(wallet.denial(full, purse, units))
            if self._tidying is None:
                self._tidying = asyncio.ensure_future(self._tidy())
            done = purse.fetching = asyncio.get_running_loop().create_future()
            try:
                await self._io.run(wallet.fetch(full, purse, units))
            except Down as down:
                self._limit._flows.core.let_pass(down, self._limit.name)
                return uncounted(units, self._limit.policy, self._limit.name)
            finally:
                purse.fetching = None
                done.set_result(None)
            now = time.monotonic()
            decision = wallet.granted(purse, units, now) if purse.spend(units, now) else None
            if wallet.closed:
                await self.give_back()
            if decision is not None:
                return decision
            if purse.short:
                return await self._io.run(wallet.denial(full, purse, units))

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(self._wallet.idle / 2)
            await self.give_back(everything=False)

    async def give_back(self, everything: bool = True) -> None:
        """Gives units back that were not spent: all of them, or those of idle keys."""
        batches = self._wallet.to_give_back(all=everything)
        if batches:
            await self._io._finish(self._wallet.give_back(batches))

    async def aclose(self) -> None:
        """Gives all units back. The wallet can't be used any more."""
        self._wallet.closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        await self.give_back()

    async def __aenter__(self) -> AsyncLimitWallet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncGuard:
    """What `protect` returns."""

    def __init__(self, limit: AsyncLimit, key: Key, cost: int, wait: Duration | None) -> None:
        self._limit = limit
        self._key = checked_key(key) and key
        self._cost = checked_cost(cost)
        self._wait_us = checked_wait(wait)
        self._wait = wait

    async def take(self, key: Key) -> Decision:
        limit = self._limit
        call = limit.wait(key, self._wait or 0, self._cost) if self._wait_us else limit.take(key, self._cost)
        return (await call).raise_if_denied()

    def __await__(self) -> Generator[Any, None, Decision]:
        return self.take(self._key).__await__()

    async def __aenter__(self) -> Decision:
        return await self.take(self._key)

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError("a limit of redis.asyncio.Redis guards an async function: use redis.Redis for others")
        key_of = key_format(self._key, function)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            await self.take(key_of(args, kwargs))
            return await function(*args, **kwargs)

        return limited


class AsyncLimits:
    """What `Limits` returns for a client of asyncio."""

    def __init__(
        self,
        client: Any,
        prefix: str = "",
        on_down: Literal["open", "closed"] = "closed",
        patience: float = 1.0,
        peek_replica: bool = False,
        max_connections: int = 64,
    ) -> None:
        self._io = AsyncIO(client, max_connections)
        self._core = Core(prefix, on_down, patience, self._io.topology, peek_replica and self._io.cluster)

    @overload
    def limit(self, name: str, policy: RatePolicy) -> AsyncLimit: ...
    @overload
    def limit(self, name: str, policy: Lease) -> AsyncLeaseLimit: ...
    def limit(self, name: str, policy: Policy) -> AsyncLimit | AsyncLeaseLimit:
        """A limit of this name. The key on the server is the prefix, the name, a colon, and the key of the call."""
        return AsyncLeaseLimit(self, name, policy) if isinstance(policy, Lease) else AsyncLimit(self, name, policy)

    async def all(
        self,
        rules: Iterable[tuple[AsyncLimit | AsyncLeaseLimit, Key, int]],
        wait: Duration | None = None,
        id: Key | None = None,
    ) -> AllDecision:
        """Charges several limits, all or none. With `wait`, waits until all of them grant the call at the same moment. An
        id names the charge on each key, to settle or to release it there."""
        listed = [(limit._flows, key, cost) for limit, key, cost in rules]
        return await self._io.run(self._core.all(listed, wait, id))

    def admit(
        self,
        rules: Iterable[Rule],
        estimate: int | None = None,
        wait: Duration | None = None,
        id: Key | None = None,
    ) -> AsyncAdmission:
        """A context manager that charges several limits, all or none, and settles them at the end of its block. A rule is a
        limit, a key, and perhaps a cost. One without a cost is charged the estimate, and settled to what was used. Leases are
        renewed while the block runs, and released at its end."""
        return AsyncAdmission(self, rules, estimate, wait, id)

    def cached(self, limit: AsyncLimit) -> AsyncCachedLimit:
        """The same limit, which remembers denials: see AsyncCachedLimit."""
        return AsyncCachedLimit(limit)

    def wallet(self, limit: AsyncLimit, batch: int = 100, idle: float = 1.0) -> AsyncLimitWallet:
        """Decides in the process, from `batch` units of a key that are fetched at once. What is left when a key was idle
        for `idle` seconds is given back. Other processes find fewer units meanwhile; never more are spent than the server
        has charged."""
        return AsyncLimitWallet(limit, batch, idle)

    async def aclose(self) -> None:
        """Ends the calls that wait, which raise Down, waits for settlements that are under way, gives back what calls without
        a reply may have been granted, and closes the connections of this object. The client stays as it is."""
        self._core.closings += 1
        await self._io.close()

    async def __aenter__(self) -> AsyncLimits:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
