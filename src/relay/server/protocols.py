"""Our additions to uvicorn's protocol classes, used by `relay serve`: what no ASGI application can do from inside.

These classes are not a documented extension point of uvicorn: the version is pinned and the tests run through them.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidMessage, InvalidState
from websockets.http11 import Request

from relay.errors import BadRequest, HeadersTooLarge, RelayError
from relay.server.ws import HANG_UP
from relay.wire import encode

MAX_HEAD_BYTES = 65_536
MAX_HEADER_FIELDS = 100
"""uvicorn itself would take any number of any length into memory."""

ABORT_SECONDS = 4.0
"""How long a peer may still take to read what was sent before the connection is closed, close frame included."""


WEBSOCKET_VERSION = b"sec-websocket-version: 13\r\n"
"""A client that asks for another version is told which one is spoken here (RFC 6455, section 4.4)."""


def _response(error: RelayError, more_headers: bytes = b"") -> bytes:
    """The error as a whole HTTP response after which the connection is closed."""
    body = encode(error.as_dict())
    return (
        STATUS_LINE[error.status]
        + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        + b"cache-control: no-store\r\nconnection: close\r\n"
        + more_headers
        + b"\r\n"
        + body
    )


class HttpProtocol(HttpToolsProtocol):
    """Bounds the head of a request, and answers what is not even HTTP in the same shape as every other error."""

    _waiting_cycle: RequestResponseCycle | None = None
    """The request that is being served while others are pipelined behind it."""
    _head_bytes = 0
    _quiet_bytes = 0
    """Bytes taken in since the parser last had something to tell: a header, or a line between chunks, without end."""

    def data_received(self, data: bytes) -> None:
        self._quiet_bytes += len(data)
        super().data_received(data)
        if self._quiet_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"at most {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._quiet_bytes = 0
        if self.cycle is not None and not self.cycle.response_complete and not self.pipeline:
            self._waiting_cycle = self.cycle
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet_bytes = 0
        super().on_message_complete()

    def _count_head(self, size: int) -> None:
        self._quiet_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADER_FIELDS:
            # The parser turns it into an error of its own, and uvicorn that into a call of send_400_response.
            raise HeadersTooLarge

    def _should_upgrade(self) -> bool:
        # A handshake is a GET without a body; uvicorn would never answer one that has a body.
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return self.scope["method"] == "GET" and not has_body and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Not worth a line in the log: any caller can ask for anything."""

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADER_FIELDS:
            self._refuse(HeadersTooLarge(f"at most {MAX_HEADER_FIELDS} fields and {MAX_HEAD_BYTES} bytes"))
        else:
            self._refuse(BadRequest(msg))

    def _refuse(self, error: RelayError) -> None:
        self.transport.write(_response(error))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the newest of several pipelined requests that the peer is gone.
        for cycle in (self._waiting_cycle, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Refuses a malformed handshake in our shape, and can end a connection whose peer does not read."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        unread = self.conn.handshake_exc
        if unread is not None and not self.handshake_complete:
            # Its parser takes less than ours, 8 KiB a line; uvicorn would never send its answer.
            self._refuse(BadRequest() if isinstance(unread, InvalidMessage) else HeadersTooLarge(f"{unread}"))

    def handle_connect(self, event: Request) -> None:
        response = self.conn.accept(event)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(BadRequest(response.body.decode().strip()))
            return
        super().handle_connect(event)
        # The application's task exists, but has not run yet.
        cast(dict[str, Any], self.scope["extensions"])[HANG_UP] = self.hang_up
        # Frames that come before the handshake is answered wait until the application takes it: uvicorn would answer
        # them ahead of it, or raise.
        self.read_paused = True
        self.transport.pause_reading()

    def _refuse(self, error: RelayError) -> None:
        self.handshake_complete = self.close_sent = True
        self.transport.write(_response(error, WEBSOCKET_VERSION))
        self.transport.close()

    def send_receive_event_to_app(self) -> None:
        # Text that is not UTF-8, with the client's close behind it in one packet: that close is the answer.
        with contextlib.suppress(InvalidState):
            super().send_receive_event_to_app()

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
