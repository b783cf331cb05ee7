"""Which node of a cluster has which slot. Knows no connection."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from redis.crc import key_slot

Address = tuple[str, int]


class Topology:
    """What the client knows of its cluster at first, and then what the servers say."""

    def __init__(self, client: Any) -> None:
        manager = client.nodes_manager
        nodes = {**manager.startup_nodes, **manager.nodes_cache}
        self.nodes: list[Address] = [(node.host, int(node.port)) for node in nodes.values()]
        self.slots: dict[int, Address] = {}
        # The map may be wrong: it is read again before the next call.
        self.stale = True
        # The node that knows best: the last one that a slot has moved to.
        self._newest: Address | None = None
        self._remap: Callable[[Address], Address] = getattr(manager, "address_remap", None) or (lambda address: address)

    def address(self, slot: int) -> Address:
        """The node of a slot. Of a slot that no known node has, any node, which answers with the right one or an error."""
        return self.slots.get(slot) or random.choice(self.nodes)

    def target(self, error: Any, asked: Address) -> tuple[int, Address]:
        """The slot and the node that redis-py's MovedError or AskError names. A node without a name is the one that was
        asked."""
        return int(error.slot_id), self._remap((error.host or asked[0], int(error.port)))

    def follow(self, slot: int, address: Address) -> None:
        self.slots[slot] = address
        if address not in self.nodes:
            self.nodes.append(address)
        self.stale, self._newest = True, address

    def to_ask(self) -> list[Address]:
        """The nodes to ask for the map, in this order."""
        nodes = random.sample(self.nodes, len(self.nodes))
        return sorted(nodes, key=lambda address: address != self._newest)

    def update(self, reply: object, asked: Address) -> None:
        """Takes over the reply of CLUSTER SLOTS."""
        slots: dict[int, Address] = {}
        nodes: dict[Address, None] = {}
        assert isinstance(reply, list)
        for begin, end, *members in reply:
            addresses = []
            for member in members:
                host = member[0].decode() if isinstance(member[0], bytes) else member[0]
                # A node that does not know its own name means the one that was asked.
                addresses.append(self._remap((asked[0] if host in (None, "", "?") else host, int(member[1]))))
            nodes.update(dict.fromkeys(addresses))
            for slot in range(begin, end + 1):
                slots[slot] = addresses[0]
        if nodes:
            self.slots, self.nodes, self.stale = slots, list(nodes), False


__all__ = ["Address", "Topology", "key_slot"]
