"""The way to a Redis Cluster: which of its servers has a key, learnt from them and corrected by them.

A server that no longer has a key says who has it, and nothing was done; the call goes there. What is known may thus
be wrong at any time, and costs no more than a detour.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError

from relay.errors import StoreUnavailable
from relay.store.redis_call import Call
from relay.store.redis_connection import Connection, connect
from relay.store.redis_lane import end
from relay.store.redis_link import Link
from relay.store.redis_node import Node
from relay.store.redis_script import command
from relay.store.redis_url import RedisAddress

MAX_REDIRECTS = 5
"""More detours than that mean that the servers do not agree; better a 503 than a call that goes round in circles."""

Place = tuple[str, int]


class ClusterLink(Link):
    """One Redis, made up of several masters, each with some of the slots."""

    is_one_server = False

    def __init__(self, address: RedisAddress, *, wait_replicas: int) -> None:
        super().__init__()
        self._address = address
        self._wait_replicas = wait_replicas
        self._nodes: dict[Place, Node] = {}
        self._slots: dict[int, Place] = {}
        self._learning: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._learning is not None:
            await end(self._learning)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    async def ping(self) -> None:
        await asyncio.gather(*(self._ask(place, b"PING") for place in self._masters()))

    async def connection(self) -> Connection:
        # An announcement reaches every server of a cluster. Any will do, and another one next time.
        return await connect(self._address, *random.choice(self._masters()))  # noqa: S311

    def add(self, key: bytes, call: Call) -> None:
        self._node(self._slots.get(key_slot(key)) or self._masters()[0]).add(call)

    def again(self, node: Node, call: Call, refusal: ResponseError) -> bool:
        if not isinstance(refusal, AskError) or call.redirects >= MAX_REDIRECTS:
            return False
        call.redirects += 1
        place = (refusal.host or node.host, int(refusal.port))
        # Both kinds of refusal are AskErrors: a slot that has MOVED is there for good, one still on the move is not.
        call.asking = not isinstance(refusal, MovedError)
        if not call.asking:
            self._slots[int(refusal.slot_id)] = place
            self._learn_soon()
        self._node(place).add(call)
        return True

    def broken(self, node: Node) -> None:
        self._learn_soon()

    def _node(self, place: Place) -> Node:
        node = self._nodes.get(place)
        if node is None:
            node = Node(partial(connect, self._address, *place), place[0], self._wait_replicas, self)
            self._nodes[place] = node
        return node

    def _masters(self) -> list[Place]:
        return list(dict.fromkeys(self._slots.values())) or list(self._address.hosts)

    def _ask(self, place: Place, *parts: bytes) -> Call:
        call = Call(command(*parts), None, self.loop)
        self._node(place).add(call)
        return call

    def _learn_soon(self) -> None:
        if self._learning is None or self._learning.done():
            self._learning = self.loop.create_task(self._learn())

    async def _learn(self) -> None:
        """Ask one server after the other which of them has what, until one answers."""
        for place in dict.fromkeys((*self._masters(), *self._nodes, *self._address.hosts)):
            try:
                ranges = await self._ask(place, b"CLUSTER", b"SLOTS")
            except StoreUnavailable:
                continue
            slots = {}
            for first, last, (host, port, *_), *_replicas in ranges:
                master = (host.decode() if host else place[0], int(port))
                slots.update(dict.fromkeys(range(first, last + 1), master))
            if slots:
                self._slots = slots
                await self._drop_unused()
                return

    async def _drop_unused(self) -> None:
        used = {*self._slots.values(), *self._address.hosts}
        for place in [place for place in self._nodes if place not in used]:
            await self._nodes.pop(place).close()
