"""Our additions to uvicorn's WebSocket protocol class, used by `relay serve`: see `protocols.py`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from relay.errors import BadRequest
from relay.server.peers import Unread
from relay.server.protocols import ABORT_SECONDS, response
from relay.server.ws import HANG_UP


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Refuses a malformed handshake in our shape, and can end a connection whose peer does not read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = Unread()

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
