"""Our additions to uvicorn's WebSocket protocol class, used by `relay serve`: see `protocols.py`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from relay.errors import BadRequest
from relay.server.allowance import Allowance
from relay.server.peers import STATE_KEY, Peers, Unread
from relay.server.protocols import ABORT_SECONDS, response
from relay.server.ws import CLOSE_TOO_MANY, FRAMES_PER_TURN, HANG_UP, TOO_MANY

SLICE_BYTES = 1_024
"""So much is parsed at a time: at most 170 frames, 2 ms."""

MAX_IGNORED_BYTES = 1024**2
IGNORE_SECONDS = 1.0
"""How much is still taken from a client that was closed for a flood, so that it can read why."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Bounds what a client may say, refuses a malformed handshake in our shape, and can end a connection whose peer
    does not read."""

    _unfed = b""
    """What was read, but not yet parsed: others have a turn first."""
    _turn_frames = 0
    _flooded = False
    _ignored_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._peers: Peers = self.app_state[STATE_KEY]
        self._allowance = Allowance(self._peers.max_frames_per_second, self.loop.time())
        self._unread = Unread()

    def data_received(self, data: bytes) -> None:
        if self._flooded:
            self._ignored_bytes += len(data)
            if self._ignored_bytes > MAX_IGNORED_BYTES:
                self.transport.abort()
        elif self._unfed:
            self._unfed += data
            self._pause_reading()
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Parse piece by piece: one read may hold 40,000 pings, which would take half a second."""
        self._turn_frames = 0
        for start in range(0, len(data), SLICE_BYTES):
            if self._turn_frames > FRAMES_PER_TURN:
                self._unfed = data[start:]
                self._pause_reading()
                self.loop.call_soon(self._feed_rest)
                return
            super().data_received(data[start : start + SLICE_BYTES])
            if self._flooded or self.transport.is_closing():
                return

    def _feed_rest(self) -> None:
        data, self._unfed = self._unfed, b""
        if self._flooded or self.transport.is_closing():
            return
        self._feed(data)
        if not self._unfed and self.queue.empty():
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._unfed:
            self._pause_reading()
        return message

    def handle_events(self) -> None:
        frames = len(self.conn.events) if self.handshake_initiated else 0
        self._turn_frames += frames
        if self._allowance.take(frames, self.loop.time()):
            super().handle_events()
        elif not self.close_sent:
            self._flooded = True
            # Set, it keeps uvicorn from closing the connection when the application ends: a reset would outrun the
            # close frame while there is more to read.
            self.close_timer = self.loop.call_later(IGNORE_SECONDS, self.transport.close)
            self.conn.data_to_send()  # pongs
            self.hang_up(CLOSE_TOO_MANY, TOO_MANY)
            self._resume_reading()

    def handle_cont(self, event: Frame) -> None:
        # One piece, however many it came in: a list of countless tiny ones takes a hundred times the memory.
        self.frames = [b"".join((*self.frames, event.data))]
        if event.fin:
            self.send_receive_event_to_app()

    def look(self, now: float) -> None:
        """The sweep's question. A client may be silent for as long as it likes; only a closing one must read."""
        if self.transport.is_closing() and self._unread.seconds(self.transport, now) > ABORT_SECONDS:
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        reply = self.conn.accept(event)
        if reply.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self.handshake_complete = self.close_sent = True
            self.transport.write(response(BadRequest(reply.body.decode().strip())))
            self.transport.close()
            return
        super().handle_connect(event)
        # The application's task exists, but has not run yet.
        cast(dict[str, Any], self.scope["extensions"])[HANG_UP] = self.hang_up

    def hang_up(self, code: int, reason: str) -> None:
        """Write a close frame behind what the peer has not read, and abort if it does not read that either."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.hang_up(1011, "keepalive ping timeout")

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # pongs for a peer that does not read would pile up

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)
