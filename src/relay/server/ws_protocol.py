"""Our additions to uvicorn's WebSocket protocol class, used by `relay serve`: see `protocols.py`."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidMessage, InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

from relay.errors import BadRequest, HeadersTooLarge, RelayError
from relay.server.allowance import Allowance
from relay.server.peers import STATE_KEY, Peers, Unread
from relay.server.protocols import ABORT_SECONDS, response
from relay.server.ws import CLOSE_TOO_MANY, FRAMES_PER_TURN, HANG_UP, TOO_MANY

WEBSOCKET_VERSION = b"sec-websocket-version: 13\r\n"
"""A client that asks for another version is told which one is spoken here (RFC 6455, section 4.4)."""

SLICE_BYTES = 1_024
"""So much is parsed at a time: at most 170 frames, 2 ms."""

MAX_IGNORED_BYTES = 1024**2
IGNORE_SECONDS = 1.0
"""How much is still taken from a client that was closed for what it sent, so that it can read why."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Bounds what a client may say, refuses a malformed handshake in our shape, and can end a connection whose peer
    does not read."""

    _unfed = b""
    """What was read, but not yet parsed: others have a turn first."""
    _turn_frames = 0
    _deaf = False
    _ignored_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._peers: Peers = self.app_state[STATE_KEY]
        self._allowance = Allowance(self._peers.max_frames_per_second, self.loop.time())
        self._unread = Unread()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
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
            unread = self.conn.handshake_exc
            if unread is not None and not self.handshake_complete:
                # Its parser takes less than ours, 8 KiB a line; uvicorn would never send its answer.
                self._refuse(BadRequest() if isinstance(unread, InvalidMessage) else HeadersTooLarge(f"{unread}"))
            if self._deaf or self.transport.is_closing():
                return

    def _feed_rest(self) -> None:
        data, self._unfed = self._unfed, b""
        if self._deaf or self.transport.is_closing():
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
        # A close among too many frames is the answer to them.
        if self._allowance.take(frames, self.loop.time()) or self.conn.close_rcvd is not None:
            super().handle_events()
        elif not self.close_sent:
            self.conn.data_to_send()  # pongs
            self.conn.send_close(CLOSE_TOO_MANY, TOO_MANY)
            self._leave()

    def handle_parser_exception(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Send the close frame that is due, and ignore what still comes: a reset would outrun it."""
        close = self.conn.close_sent
        assert close is not None
        self._deaf = True
        # Set, it keeps uvicorn from closing the connection when the application ends.
        self.close_timer = self.loop.call_later(IGNORE_SECONDS, self.transport.close)
        self.hang_up(close.code, close.reason)
        if self.transport.can_write_eof():
            self.transport.write_eof()
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
            self._refuse(BadRequest(reply.body.decode().strip()))
            return
        super().handle_connect(event)
        # The application's task exists, but has not run yet.
        cast(dict[str, Any], self.scope["extensions"])[HANG_UP] = self.hang_up
        # Frames that come before the handshake is answered wait until the application takes it: uvicorn would answer
        # them ahead of it, or raise.
        self._pause_reading()

    def _refuse(self, error: RelayError) -> None:
        self.handshake_complete = self.close_sent = True
        self.transport.write(response(error, WEBSOCKET_VERSION))
        self.transport.close()

    def send_receive_event_to_app(self) -> None:
        # Text that is not UTF-8, with the client's close behind it in one packet: that close is the answer.
        with contextlib.suppress(InvalidState):
            super().send_receive_event_to_app()

    def hang_up(self, code: int, reason: str) -> None:
        """Write a close frame behind what the peer has not read, and abort if it does not read that either."""
        if not self.close_sent and not self.transport.is_closing():
            if self.conn.close_sent is None:
                self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.hang_up(1011, "keepalive ping timeout")

    def handle_ping(self) -> None:
        if self.writable.is_set() and not self._deaf:
            super().handle_ping()
        else:
            self.conn.data_to_send()  # pongs for a peer that does not read would pile up

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)
