"""How connections of redis-py are made and checked, for threads and for asyncio alike.

The package has connections of its own, made with the settings of the client. So nothing repeats a call behind its back, a
call that waits does not occupy a connection of the client's pool, and the client's time-outs do not end a wait."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from ._topology import Address, Topology

# Settings of a connection that belong to the pool that it was made for, or that repeat commands.
_DROPPED = ("maint", "oss_cluster_maint", "orig_", "retry", "health_check_interval", "cache")


def settings(kwargs: dict[str, Any], retry: object) -> dict[str, Any]:
    """The settings of a connection that tries once."""
    kept = {name: value for name, value in kwargs.items() if not name.startswith(_DROPPED)}
    kept["retry"] = retry
    return kept


def is_stale(socket: Any) -> bool:
    """Whether something has arrived on a connection that nobody uses: usually its end."""
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def topology_of(client: Any) -> Topology:
    """The topology of a cluster as far as the client knows it."""
    manager = client.nodes_manager
    nodes = {**manager.startup_nodes, **manager.nodes_cache}
    remap = getattr(manager, "address_remap", None)
    function: Callable[[Address], Address] | None = None
    if remap is not None:
        function = lambda address: remap(address)  # noqa: E731
    return Topology([(node.host, int(node.port)) for node in nodes.values()], function)
