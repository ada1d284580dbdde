"""The way to Redis: which server, and whether it is one that can keep what is promised. Knows nothing of sessions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ResponseError

from relay.errors import StartupError
from relay.store.redis_call import Call
from relay.store.redis_connection import CONNECT_SECONDS, Connection, connect
from relay.store.redis_node import Node
from relay.store.redis_script import Argument, Script, command
from relay.store.redis_url import RedisAddress, Topology

OLDEST = (6, 2)


class Link(ABC):
    """One Redis, whatever it is made up of."""

    is_one_server: bool
    """Whether whoever hears announcements is connected to the server that makes them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()  # to ask for it is a system call, until Python 3.12

    @abstractmethod
    def add(self, key: bytes, call: Call) -> None:
        """Send a call to the server that has the key."""

    @abstractmethod
    async def connection(self) -> Connection:
        """A connection of its own, for announcements."""

    @abstractmethod
    async def ping(self) -> None:
        """Return if every server answers, else raise StoreUnavailable."""

    @abstractmethod
    def again(self, node: Node, call: Call, refusal: ResponseError) -> bool:
        """Send a call elsewhere that `node` has refused; False if there is nowhere else."""

    @abstractmethod
    def broken(self, node: Node) -> None:
        """Calls to this node have failed."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection; calls under way fail."""

    def run(self, script: Script, keys: Sequence[bytes], *args: Argument) -> Call:
        """Run a script, all of whose keys have one slot. The call raises StoreUnavailable if that fails.

        With replicas to wait for, it also does so if too few confirm in time. The write may then stand
        nevertheless: repeat it, and its id will tell.
        """
        return self.send(keys[0], script.call(keys, *args), script)

    def command(self, key: bytes, *parts: Argument) -> Call:
        """Send one command to the server that has the key; otherwise as `run`."""
        return self.send(key, command(*parts), None)

    def send(self, key: bytes, packed: bytes, script: Script | None) -> Call:
        """Send a command that is packed already, the call of a script or another; otherwise as `run`."""
        call = Call(packed, script, self.loop)
        self.add(key, call)
        return call


class ServerLink(Link):
    """A single server, or the one that sentinels name as master."""

    is_one_server = True

    def __init__(self, address: RedisAddress, *, wait_replicas: int) -> None:
        super().__init__()
        self._address = address
        self._sentinel = _sentinel(address) if address.topology is Topology.SENTINEL else None
        self._node = Node(self.connection, address.hosts[0][0], wait_replicas, self)

    def add(self, key: bytes, call: Call) -> None:
        self._node.add(call)

    async def connection(self) -> Connection:
        if self._sentinel is None:
            return await connect(self._address, *self._address.hosts[0])
        return await connect(self._address, *await self._sentinel.discover_master(self._address.service))

    async def ping(self) -> None:
        await self.command(b"", b"PING")

    def again(self, node: Node, call: Call, refusal: ResponseError) -> bool:
        return False

    def broken(self, node: Node) -> None:
        return

    async def close(self) -> None:
        await self._node.close()
        for each in self._sentinel.sentinels if self._sentinel else ():
            await each.aclose()


async def check_server(link: Link) -> None:
    """Raise StartupError if this server could not keep what is promised."""
    server, memory = await asyncio.gather(_info(link, b"server"), _info(link, b"memory"))
    version = server["redis_version"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StartupError(f"RELAY_STORE_URL: this Redis is {version}. Use {'.'.join(map(str, OLDEST))} or newer.")
    policy = memory.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and memory.get("maxmemory") != "0":
        raise StartupError(
            f"RELAY_STORE_URL: this Redis drops what it likes when its memory is full (maxmemory-policy {policy}), "
            "so messages would be lost. Set maxmemory-policy noeviction there."
        )


async def _info(link: Link, section: bytes) -> dict[str, str]:
    told: bytes = await link.command(b"", b"INFO", section)
    return dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)


def _sentinel(address: RedisAddress) -> Sentinel:
    asked = {"socket_connect_timeout": CONNECT_SECONDS / 2, "socket_timeout": CONNECT_SECONDS / 2, "protocol": 2}
    return Sentinel(address.hosts, sentinel_kwargs={**asked, **address.sentinel_options, "ssl": address.tls})
