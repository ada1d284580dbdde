"""Watches over the connections of one process: how many there are, and that nobody holds one for nothing.

A timer for each request would cost more than the rest of the watch. Connections only note how far they have come; one
sweep, about once a second, looks at them and cuts those that have not come further for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections.abc import Iterable, Set
from typing import Any, Protocol

from relay.config import Settings
from relay.server.telemetry import Telemetry

if sys.platform != "win32":
    import fcntl
    import resource
    import termios

STATE_KEY = "relay.peers"
"""Where a protocol object finds the `Peers` in the state that the application gives to its server."""

SWEEP_SECONDS = 1.0
LOOKS_PER_TURN = 500
"""So many connections are looked at before everybody else has a turn: half a millisecond."""

CALM_SWEEPS = 5
"""Who is calm is looked at in one of so many sweeps: ten thousand sockets take milliseconds, most of it for memory."""

LEAVE_SECONDS = 1.0

MIN_RESERVED_FILES = 64
"""Files for what is not counted as a connection: the store, the log, libraries, those who are leaving."""


class Watched(Protocol):
    """A connection as the sweep sees it."""

    def look(self, now: float) -> None:
        """Cut the connection if its peer has kept it waiting for too long."""


class Peers:
    """The bounds of every connection, and those that there are. The protocol classes fill it."""

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.header_seconds = settings.header_timeout_seconds
        self.body_seconds = settings.body_timeout_seconds
        self.send_seconds = settings.send_timeout_seconds
        self.max_header_bytes = settings.max_header_bytes
        self.max_header_fields = settings.max_header_fields
        self.max_frames_per_second = settings.max_frames_per_second
        open_files = _open_files()
        self.max_connections = max(1, min(settings.max_connections, open_files - reserved_files(open_files)))
        self.max_leaving = reserved_files(open_files) // 2
        self.connections: Set[Any] | None = None
        """The web server's own set, whose protocol objects are all ours; None under another server."""
        self.calm: set[Any] = set()
        """Those of them that are in no hurry to be cut: WebSocket clients that read what they get."""
        self._sweeps = 0
        self.leaving: set[Watched] = set()
        """Those that are no longer served, and not counted, but not quite gone."""
        # Noticed at one look and cut at a later one: a quarter of the shortest time keeps that in proportion.
        shortest = min(self.header_seconds, self.body_seconds, self.send_seconds)
        self.sweep_seconds = min(SWEEP_SECONDS, shortest / 4)

    async def sweep(self) -> None:
        """Look at every connection once, but not each time at those that are calm."""
        self._sweeps += 1
        connections: Set[Any] = self.connections or frozenset()
        await self._look(connections - self.calm if self._sweeps % CALM_SWEEPS else connections)
        await self._look(self.leaving)

    async def _look(self, connections: Iterable[Watched]) -> None:
        now = asyncio.get_running_loop().time()
        for count, connection in enumerate(list(connections), start=1):
            try:
                connection.look(now)
            except Exception as error:  # whatever is wrong with one must not save the others
                self.telemetry.internal_error(error)
            if count % LOOKS_PER_TURN == 0:
                await asyncio.sleep(0)


class Leaving(asyncio.Protocol):
    """A connection that gets its last answer, or is about to.

    Closed while the peer still sends, it would be reset and the answer lost. So it is closed on our side only, and what
    still comes is thrown away until the peer hangs up too, or LEAVE_SECONDS have passed. If there are too many of them,
    so be it.
    """

    def __init__(self, transport: asyncio.Transport, peers: Peers, answer: bytes, *, wait: bool) -> None:
        self._transport = transport
        self._peers = peers
        self._answer = answer
        self._since: float | None = None
        peers.leaving.add(self)
        transport.set_protocol(self)
        transport.resume_reading()
        if len(peers.leaving) > peers.max_leaving:
            self._say()
            transport.close()
        elif not wait:
            self._say()

    def data_received(self, data: bytes) -> None:
        self._say()

    def look(self, now: float) -> None:
        self._say()
        if self._since is None:
            self._since = now
        elif now - self._since > LEAVE_SECONDS:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.leaving.discard(self)

    def _say(self) -> None:
        if self._answer and not self._transport.is_closing():
            self._transport.write(self._answer)
            self._answer = b""
            if self._transport.can_write_eof():
                self._transport.write_eof()


class Unread:
    """What a peer has not read yet, to tell one that reads slowly from one that does not read."""

    __slots__ = ("_since", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._since = 0.0

    def moved(self) -> None:
        """Something was read, even if as much was written since."""
        self._size = 0

    def seconds(self, transport: asyncio.Transport, now: float) -> float:
        """For how long the peer has taken nothing of it; 0 if nothing waits."""
        size = transport.get_write_buffer_size()
        if size == 0:
            self._size = 0
            return 0.0
        size += _kernel_bytes(transport)
        if size != self._size:
            self._size, self._since = size, now
        return now - self._since


def _kernel_bytes(transport: asyncio.Transport) -> int:
    """What the kernel holds for the peer. Over a slow line it takes more from us only every so many seconds, while what
    it holds itself shrinks all the time."""
    if sys.platform == "win32":
        return 0
    try:
        answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError):
        return 0
    return int(struct.unpack("i", answer)[0])


def reserved_files(open_files: int) -> int:
    """How many of the files that a process may open are not for connections."""
    return max(MIN_RESERVED_FILES, open_files // 10)


def _open_files() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Let this process, and those that it starts, open as many files as it is allowed to at all."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names more than it grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
