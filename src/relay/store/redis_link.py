"""The way to Redis and back: scripts, connections, and the calls of one moment sent together.

Calls made in the same tick of the loop travel as one pipeline; while every connection is busy, calls gather and
travel together next. Whoever waits for a call may give up at any time: that abandons the answer, never the
connection, so no reply can reach anybody else. Knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any, cast

import hiredis
import redis.exceptions
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from relay.errors import StartupError, StoreUnavailable
from relay.store.redis_url import RedisAddress, Topology

OLDEST = (6, 2)

CONNECT_SECONDS = 2.0
CALL_SECONDS = 5.0
"""For a connection, and for a pipeline from its connection to its last reply. Redis answers within a millisecond
or is in trouble; whoever asked gets a 503 rather than no answer at all."""

WAIT_MS = 1000
"""How long replicas have to confirm a write, if that is asked for."""

MAX_CONNECTIONS = 8
"""Redis works on one command at a time, so more connections would only make the pipelines shorter."""

MAX_TOGETHER = 256
MAX_QUEUED = 20_000
"""Calls in one pipeline, and calls that wait for one; more than that means that Redis does not keep up."""

Argument = bytes | str | int
Reply = Any

# hiredis declares tuples of one element only.
_pack_command = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)


class Script:
    """A file of store/lua; `parts` are files that come before it and are shared with other scripts."""

    def __init__(self, name: str, *parts: str, writes: bool = True) -> None:
        folder = resources.files("relay.store") / "lua"
        self.name = name
        self.writes = writes
        self.source = "\n".join((folder / f"{part}.lua").read_text() for part in (*parts, name)).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class Call:
    """One command under way, and the future of whoever waits for its reply."""

    __slots__ = ("asking", "command", "future", "redirects", "script")

    def __init__(self, command: tuple[Argument, ...], script: Script | None, future: asyncio.Future[Reply]) -> None:
        self.command = command
        self.script = script
        self.future = future
        self.asking = False
        self.redirects = 0

    @property
    def writes(self) -> bool:
        """Whether replicas may have to confirm it."""
        return self.script is not None and self.script.writes

    def send_source(self) -> bool:
        """From now on send the script itself, not its hash; False if that is what was sent already."""
        assert self.script is not None
        known = self.command[0] == b"EVALSHA"
        self.command = (b"EVAL", self.script.source, *self.command[2:])
        return known

    def answer(self, reply: Reply) -> None:
        """Hand the reply to whoever waits, unless nobody does any more."""
        if self.future.done():
            return
        if isinstance(reply, Exception):
            error = StoreUnavailable()
            error.__cause__ = reply
            self.future.set_exception(error)
        else:
            self.future.set_result(reply)


class Node:
    """One server: its connections, and the calls that wait for one."""

    def __init__(self, pool: BlockingConnectionPool, wait_replicas: int, link: Link) -> None:
        self.pool = pool
        self.host: str = pool.connection_kwargs.get("host", "")
        self._wait_replicas = wait_replicas
        self._link = link
        self._queue: list[Call] = []
        self._scheduled = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, call: Call) -> None:
        """Send the call at the end of this tick, or as soon as a connection is free."""
        if self._closed or len(self._queue) >= MAX_QUEUED:
            call.answer(RedisError("closed" if self._closed else f"{MAX_QUEUED} calls wait already"))
            return
        self._queue.append(call)
        if not self._scheduled and len(self._tasks) < MAX_CONNECTIONS:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def close(self) -> None:
        """Let go of the connections; calls under way fail."""
        self._closed = True
        await end(*self._tasks)
        _answer_all(self._queue, RedisError("closed"))
        await self.pool.aclose()

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and len(self._tasks) < MAX_CONNECTIONS and not self._closed:
            batch, self._queue = self._queue[:MAX_TOGETHER], self._queue[MAX_TOGETHER:]
            task = asyncio.get_running_loop().create_task(self._send(deque(batch)))
            self._tasks.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flush()

    async def _send(self, batch: deque[Call]) -> None:
        # Nobody waits for this task, so a cancellation means one of two things: the time is up, or close().
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(CALL_SECONDS, task.cancel)
        connection: AbstractConnection | None = None
        try:
            connection = await self._connect()
            await self._exchange(connection, batch)
        except asyncio.CancelledError as exc:
            await self._give_up(connection, batch, exc)
        except Exception as exc:  # whatever it was, nobody may be left waiting
            await self._give_up(connection, batch, exc)
        finally:
            timer.cancel()
            if connection is not None:
                await self.pool.release(connection)

    async def _connect(self) -> AbstractConnection:
        connection: AbstractConnection
        try:
            connection = await self.pool.get_connection()
        except redis.exceptions.ConnectionError:
            # Nothing was sent, so a second try is safe; it finds the new master if the first met the old one.
            connection = await self.pool.get_connection()
        return connection

    async def _exchange(self, connection: AbstractConnection, batch: deque[Call]) -> None:
        """Send the batch and take from it whatever has its answer, or was sent elsewhere."""
        # One WAIT for all: it covers every write before it on this connection.
        wait = self._wait_replicas > 0 and any(call.writes for call in batch)
        await connection.send_packed_command(self._pack(batch, wait))
        held = []
        stale = False
        for _ in range(len(batch)):
            call = batch[0]
            if call.asking:
                await _reply(connection)
            reply = await _reply(connection)
            stale = stale or isinstance(reply, ReadOnlyError)
            batch.popleft()
            if wait and call.writes and not isinstance(reply, Exception):
                held.append(reply)
                batch.append(call)
            else:
                self._answer(call, reply)
        if wait:
            replicas = await _reply(connection)
            for reply in held:
                batch.popleft().answer(self._confirmed(reply, replicas))
        if stale:
            # This was a master once. Every connection is made anew, wherever the name now leads.
            await connection.disconnect(nowait=True)
            await self.pool.disconnect(inuse_connections=False)

    def _pack(self, batch: Iterable[Call], wait: bool) -> bytes:
        packed = []
        for call in batch:
            if call.asking:
                packed.append(_pack_command((b"ASKING",)))
            packed.append(_pack_command(call.command))
        if wait:
            packed.append(_pack_command((b"WAIT", self._wait_replicas, WAIT_MS)))
        return b"".join(packed)

    def _answer(self, call: Call, reply: Reply) -> None:
        if isinstance(reply, NoScriptError) and call.script is not None and call.send_source():
            self.add(call)
        elif not (isinstance(reply, ResponseError) and self._link.again(self, call, reply)):
            call.answer(reply)

    def _confirmed(self, reply: Reply, replicas: Reply) -> Reply:
        if isinstance(replicas, int) and replicas < self._wait_replicas:
            return RedisError(f"{replicas} of {self._wait_replicas} replicas have confirmed")
        return replicas if isinstance(replicas, Exception) else reply

    async def _give_up(
        self, connection: AbstractConnection | None, batch: Iterable[Call], error: BaseException
    ) -> None:
        timed_out = isinstance(error, asyncio.CancelledError)
        _answer_all(batch, RedisError("no reply in time") if timed_out else error)
        self._link.broken(self)
        if connection is not None:
            await connection.disconnect(nowait=True)  # what is left of its replies is nobody's


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end."""
    # More than once: until Python 3.12, asyncio.wait_for may swallow a cancellation, and redis-py uses it.
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)


def _answer_all(batch: Iterable[Call], reply: Reply) -> None:
    for call in batch:
        call.answer(reply)


async def _reply(connection: AbstractConnection) -> Reply:
    """The next reply; a refusal is returned, a broken connection is raised."""
    try:
        return await connection.read_response(timeout=math.inf)
    except ResponseError as refusal:
        return refusal


class Link(ABC):
    """One Redis, whatever it is made up of."""

    @abstractmethod
    def node_of(self, key: bytes) -> Node:
        """The server that has the key."""

    @abstractmethod
    def listening_connection(self) -> AbstractConnection:
        """A connection of its own for announcements, not yet connected."""

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

    def run(self, script: Script, keys: Sequence[bytes], *args: Argument) -> asyncio.Future[Reply]:
        """Run a script, all of whose keys have one slot. The future raises StoreUnavailable if that fails.

        With replicas to wait for, it also does so if too few confirm in time. The write may then stand
        nevertheless: repeat it, and its id will tell.
        """
        return self._add(keys[0], (b"EVALSHA", script.sha, len(keys), *keys, *args), script)

    def command(self, key: bytes, *command: Argument) -> asyncio.Future[Reply]:
        """Send one command to the server that has the key; otherwise as `run`."""
        return self._add(key, command, None)

    def _add(self, key: bytes, command: tuple[Argument, ...], script: Script | None) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.node_of(key).add(Call(command, script, future))
        return future


class ServerLink(Link):
    """A single server, or the one that sentinels name as master."""

    def __init__(self, address: RedisAddress, *, wait_replicas: int) -> None:
        self._sentinel = _sentinel(address) if address.topology is Topology.SENTINEL else None
        pool = _sentinel_pool(address, self._sentinel) if self._sentinel else server_pool(address, *address.hosts[0])
        self._node = Node(pool, wait_replicas, self)

    def node_of(self, key: bytes) -> Node:
        return self._node

    def listening_connection(self) -> AbstractConnection:
        return listening(self._node.pool)

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


def listening(pool: BlockingConnectionPool) -> AbstractConnection:
    """A connection beside those of the pool, which may wait for ever once it is subscribed."""
    connection: AbstractConnection = pool.make_connection()
    connection.socket_timeout = CONNECT_SECONDS  # until then
    return connection


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """redis-py has each of the two, but not both in one."""


def connection_options(address: RedisAddress) -> dict[str, Any]:
    """How every connection to a server is made."""
    return {
        **address.options,
        "protocol": 2,  # replies in one shape, whatever the server's version
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": None,  # there is one time for a whole pipeline, see CALL_SECONDS
        "socket_keepalive": True,
        "max_connections": MAX_CONNECTIONS,
        "timeout": CONNECT_SECONDS,
        "client_name": "relay",
        "driver_info": None,
    }


def server_pool(address: RedisAddress, host: str, port: int) -> BlockingConnectionPool:
    """Connections to one server."""
    kind = SSLConnection if address.tls else Connection
    return BlockingConnectionPool(
        connection_class=kind, host=host, port=port, db=address.db, **connection_options(address)
    )


def _sentinel(address: RedisAddress) -> Sentinel:
    asked = {"socket_connect_timeout": CONNECT_SECONDS / 2, "socket_timeout": CONNECT_SECONDS / 2, "protocol": 2}
    return Sentinel(address.hosts, sentinel_kwargs={**asked, **address.sentinel_options, "ssl": address.tls})


def _sentinel_pool(address: RedisAddress, sentinel: Sentinel) -> BlockingConnectionPool:
    return _SentinelPool(  # type: ignore[no-untyped-call]
        address.service, sentinel, ssl=address.tls, db=address.db, **connection_options(address)
    )
