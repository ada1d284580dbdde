"""Our additions to uvicorn's protocol classes, used by `relay serve`: what no ASGI application can do from inside.

These classes are not a documented extension point of uvicorn: the version is pinned and the tests run through them.
"""

from __future__ import annotations

from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from relay.errors import BadRequest
from relay.server.http import error_answer
from relay.server.ws import HANG_UP

ABORT_SECONDS = 5.0
"""How long a stalled client may still take to read what was sent, close frame included."""


class HttpProtocol(HttpToolsProtocol):
    """Answers a request that is not even HTTP in the same shape as every other error."""

    def send_400_response(self, msg: str) -> None:
        answer = error_answer(BadRequest(msg))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(answer.body)
        self.transport.write(STATUS_LINE[400] + head + answer.body)
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Can end a connection whose peer does not read."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            # The application's task exists, but has not run yet.
            cast(dict[str, Any], self.scope["extensions"])[HANG_UP] = self.hang_up

    def hang_up(self, code: int, reason: str) -> None:
        """Write a close frame behind what the peer has not read, and abort if it does not read that either."""
        if self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        # Cancelled by connection_lost, like uvicorn's own.
        self.close_timer = self.loop.call_later(ABORT_SECONDS, self.transport.abort)
