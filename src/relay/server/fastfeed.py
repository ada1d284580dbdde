"""What one WebSocket client of `relay serve` is told, without a task for it; and how its connection ends.

A socket that is live has no task: it is handed what its session gets in one turn of the loop, and writes it in one go.
Only while it has to catch up from the log does one run. `feed.py` is the same for any other server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from relay.config import Settings
from relay.core.relay import Relay
from relay.core.subscriber import Batch, Frame, Subscriber
from relay.core.waiter import Waits
from relay.errors import RelayError
from relay.server.drive import Waiting, begin
from relay.server.framing import Opcode, close_frame, frame
from relay.server.guard import Guard
from relay.server.inbox import Inbox
from relay.server.outbox import Outbox
from relay.server.peers import Peers, Unread
from relay.server.protocols import ABORT_SECONDS
from relay.server.telemetry import Telemetry
from relay.server.ws import CLOSE_ABNORMAL, CLOSE_INTERNAL

SOCKETS_KEY = "relay.sockets"
"""Where a protocol object finds the `FastSockets` in the state that the application gives to its server."""

SILENCE_SECONDS = 20.0
"""A client that was silent for so long is pinged, and given up if it then stays silent for as long again."""

PING = frame(Opcode.PING, b"")
TEXT = Opcode.TEXT
"""By a name of its own: to look a member up in an enumeration takes as long as to pack a head."""


class FastSockets:
    """What all sockets share: the relay behind them, and the lists of connections that have something to do."""

    def __init__(
        self,
        relay: Relay,
        guard: Guard,
        peers: Peers,
        settings: Settings,
        telemetry: Telemetry,
        now_ms: Callable[[], int],
        waits: Waits,
    ) -> None:
        self.relay = relay
        self.guard = guard
        self.peers = peers
        self.telemetry = telemetry
        self.now_ms = now_ms
        self.max_frame_bytes = settings.max_frame_bytes
        self.outbox = Outbox(telemetry.internal_error)
        self.inbox = Inbox(waits, self.outbox, telemetry.internal_error)


class FastFeed(asyncio.Protocol):
    """Writes to one client, closes its connection and notices its end."""

    __slots__ = (
        "_connections",
        "_ended",
        "_expiry",
        "_hall",
        "_heard_at",
        "_leaving",
        "_paused",
        "_pinged",
        "_scheduled",
        "_task",
        "_tasks",
        "_transport",
        "_unread",
        "_unsubscribed",
        "_writable",
        "loop",
        "subscriber",
    )

    def __init__(
        self,
        hall: FastSockets,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        connections: set[Any],
        tasks: set[Any],
    ) -> None:
        self._hall = hall
        self._transport = transport
        self._connections = connections
        self._tasks = tasks
        self.loop = loop
        self.subscriber: Subscriber | None = None
        self._heard_at = loop.time()
        self._unread: Unread | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Catches up from the log; None while the client is live."""
        self._writable: asyncio.Future[None] | None = None
        self._scheduled = self._paused = self._pinged = False
        self._leaving: int | None = None
        """The code with which the connection is being closed."""
        self._ended = self._unsubscribed = False
        connections.add(self)

    # To the client

    def wake(self) -> None:
        """There is something to write, or to do."""
        if not self._scheduled:
            self._scheduled = True
            self._hall.outbox.add_socket(self)

    def write(self, batch: Batch) -> bool:
        """Write a batch past the queue, unless the client does not read or is about to leave."""
        if self._paused or self._leaving is not None or self._ended:
            return False
        if batch.wire is None:
            batch.wire = b"".join([wire(answer) for _, answer in batch.answers])
        self._transport.write(batch.wire)
        return True

    def write_now(self) -> None:
        """Write what is queued, in one go; then close, or catch up, if that is what comes next."""
        self._scheduled = False
        subscriber = self.subscriber
        if subscriber is None or self._paused or self._leaving is not None or self._ended:
            return
        frames = subscriber.take()
        if len(frames) == 1:
            self._transport.write(wire(frames[0]))
        elif frames:
            self._transport.write(b"".join(map(wire, frames)))
        if subscriber.close_code is not None:
            self._leave(subscriber.close_code, subscriber.close_reason)
        elif not subscriber.live and self._task is None and not self._paused:
            self._task = self._run(self._catch_up(subscriber))

    async def _catch_up(self, subscriber: Subscriber) -> None:
        try:
            async for missed in self._hall.relay.catch_up(subscriber):
                if self._paused:
                    self._writable = self.loop.create_future()
                    await self._writable
                if self._leaving is not None or self._ended:
                    return
                self._transport.write(wire(missed))
        except RelayError:
            subscriber.close(CLOSE_INTERNAL, "store unavailable")
        except Exception as error:
            self._hall.telemetry.internal_error(error)
            subscriber.close(CLOSE_INTERNAL, "internal error")
        finally:
            self._task = None
            self.wake()

    def pause_writing(self) -> None:
        self._paused = True
        self._hall.peers.calm.discard(self)
        if self.subscriber is not None:
            self.subscriber.writing_since = self.loop.time()

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()
        if self.subscriber is not None:
            self.subscriber.writing_since = None
            self.wake()
            self._calm_down()

    def _calm_down(self) -> None:
        """The client has what it was sent so far."""
        if self._leaving is None and not self._ended:
            self._hall.peers.calm.add(self)

    def _go_on(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # The end

    def look(self, now: float) -> None:
        """The sweep's question: does anybody still live at the other end?"""
        if self._transport.is_closing() or self._leaving is not None:
            if self._unread_seconds(now) > ABORT_SECONDS:
                self._transport.abort()
        elif self.subscriber is None:
            return  # it waits for us
        elif self._paused:
            if self._unread_seconds(now) == 0:
                self.subscriber.writing_since = now  # it reads, if slowly
        elif now - self._heard_at > 2 * SILENCE_SECONDS and self._pinged:
            self._leave(CLOSE_INTERNAL, "keepalive ping timeout")
        elif now - self._heard_at > SILENCE_SECONDS and not self._pinged:
            self._pinged = True
            self._transport.write(PING)

    def _unread_seconds(self, now: float) -> float:
        self._unread = self._unread or Unread()
        return self._unread.seconds(self._transport, now)

    def shutdown(self) -> None:
        """The server stops. The hub has told each subscriber so; whoever is left is only waited for a moment."""
        self.loop.call_later(ABORT_SECONDS, self._transport.abort)

    def _stalled(self) -> None:
        subscriber = self.subscriber
        assert subscriber is not None
        self._leave(subscriber.close_code or CLOSE_ABNORMAL, subscriber.close_reason)

    def _leave(self, code: int, reason: str) -> None:
        """Send a close frame behind what the peer has not read; abort if it answers neither."""
        self._leaving = code
        self._hall.peers.calm.discard(self)
        self._go_on()
        if not self._transport.is_closing():
            self._transport.write(close_frame(code, reason))
        self.loop.call_later(ABORT_SECONDS, self._transport.abort)
        self._unsubscribe(code)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._go_on()
        self._connections.discard(self)
        self._hall.peers.calm.discard(self)
        if self._leaving is None:
            self._unsubscribe(CLOSE_ABNORMAL)

    def _unsubscribe(self, code: int) -> None:
        """Nothing more will be sent; what is left of the connection is nobody's place."""
        if self._expiry is not None:
            self._expiry.cancel()
        subscriber = self.subscriber
        if subscriber is None or self._unsubscribed:
            return  # it was never let in, or has left already
        self._unsubscribed = True
        subscriber.waker = subscriber.writer = None
        subscriber.close(CLOSE_ABNORMAL, "gone")
        self._hall.telemetry.client_disconnected(subscriber.session_id, code)
        self._run(self._hall.relay.unsubscribe(subscriber))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Do it now, and the rest in a task if it has to wait."""
        try:
            begin(coroutine)
        except Waiting as waiting:
            task = self.loop.create_task(waiting.rest)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task
        return None


def wire(message: Frame) -> bytes:
    """The message as a WebSocket frame, made once for all who get it."""
    if message.wire is None:
        message.wire = frame(TEXT, message.data)
    return message.wire
