"""/ws/{session_id}: a client listens for answers.

Two tasks per socket: this one reads what the client says, the other writes what `Relay.follow` gives. A handshake is
refused with a real HTTP status and the same JSON as any other error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from fastapi import WebSocket
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from relay.core.relay import Relay
from relay.core.subscriber import Frame, Subscriber
from relay.errors import InvalidField, InvalidJson, NotFound, RelayError, SessionNotFound, UpgradeRequired
from relay.models import check_id
from relay.server.asgi import is_utf8_path, send_answer
from relay.server.http import error_answer
from relay.server.telemetry import Telemetry
from relay.wire import encode

MAX_FRAME_BYTES = 65_536
"""A client has nothing longer to say than a ping."""

CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_ABNORMAL = 1006

HANG_UP = "relay.hang_up"
"""ASGI extension of our own servers: write a close frame behind what is stuck, and abort soon after."""

STALLED_CLOSE_SECONDS = 5.0
"""Under a server without that extension: how long a stalled client may take to read the close frame."""


class _ClientFrame(msgspec.Struct):
    type: str


_client_frame_decoder = msgspec.json.Decoder(_ClientFrame)


def ping_frame(now_ms: int) -> Frame:
    """The specification's ping."""
    return Frame(b'{"type":"ping","ts":%d}' % now_ms)


def answer_client(text: str, now_ms: int) -> Frame | None:
    """What to say to a client's message: nothing to a pong, a pong to a ping, an error to all else."""
    try:
        kind = _client_frame_decoder.decode(text).type
    except msgspec.ValidationError:
        return _error_frame(InvalidField("a message must be a JSON object with a type"))
    except (msgspec.DecodeError, RecursionError):
        return _error_frame(InvalidJson("a message must be a JSON object with a type"))
    if kind == "pong":
        return None
    if kind == "ping":
        return Frame(b'{"type":"pong","ts":%d}' % now_ms)
    return _error_frame(InvalidField("type must be ping or pong"))


def _error_frame(error: RelayError) -> Frame:
    body = error.as_dict() | {"error": "Invalid message"}
    return Frame(encode({"type": "error", **body}))


class Sockets:
    """Serves WebSocket clients."""

    def __init__(self, relay: Relay, telemetry: Telemetry, now_ms: Callable[[], int]) -> None:
        self._relay = relay
        self._telemetry = telemetry
        self._now_ms = now_ms

    async def serve(self, websocket: WebSocket, session_id: str) -> None:
        """Listen on behalf of one client until either side ends it."""
        try:
            subscriber = await self._admit(websocket.scope, session_id)
        except RelayError as error:
            await self.refuse(error, websocket.scope, websocket.receive, websocket.send)
            return
        close_code = CLOSE_ABNORMAL
        try:
            await websocket.accept()
            self._telemetry.client_connected(session_id)
            try:
                close_code = await self._exchange(websocket, subscriber)
            finally:
                self._telemetry.client_disconnected(session_id, close_code)
        finally:
            self._relay.unsubscribe(subscriber)

    async def _admit(self, scope: Scope, session_id: str) -> Subscriber:
        if "\ufffd" in session_id and not is_utf8_path(scope):
            raise SessionNotFound
        try:
            check_id(session_id, "session_id")
        except InvalidField:
            raise SessionNotFound from None
        return await self._relay.subscribe(session_id)

    async def _exchange(self, websocket: WebSocket, subscriber: Subscriber) -> int:
        """Read and write until the end; returns the close code."""
        reader = asyncio.current_task()
        assert reader is not None
        writer = asyncio.create_task(self._write(websocket, subscriber))
        subscriber.on_stalled = writer.cancel
        # However the writer ends, the reader must not go on alone.
        writer.add_done_callback(lambda _: reader.cancel())
        try:
            return await self._read(websocket, subscriber)
        except asyncio.CancelledError:
            if not writer.done():
                raise
            failure = None if writer.cancelled() else writer.exception()
            if failure is not None and not isinstance(failure, WebSocketDisconnect):
                raise failure from None
            return subscriber.close_code or CLOSE_ABNORMAL
        finally:
            writer.cancel()

    async def _read(self, websocket: WebSocket, subscriber: Subscriber) -> int:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or CLOSE_ABNORMAL)
            text = message.get("text")
            if len(message.get("bytes") or b"") > MAX_FRAME_BYTES or len((text or "").encode()) > MAX_FRAME_BYTES:
                subscriber.close(CLOSE_TOO_BIG, "message too big")
            elif text is None:
                subscriber.notify(_error_frame(InvalidField("a message must be text, not binary")))
            elif reply := answer_client(text, self._now_ms()):
                subscriber.notify(reply)

    async def _write(self, websocket: WebSocket, subscriber: Subscriber) -> None:
        now = asyncio.get_running_loop().time
        try:
            async for frame in self._relay.follow(subscriber):
                subscriber.writing_since = now()
                await websocket.send_text(frame.text)
                subscriber.writing_since = None
        except asyncio.CancelledError:
            if subscriber.close_code is None:
                raise  # the client left; otherwise the write has stalled
            await self._hang_up(websocket, subscriber)
        except RelayError:
            await websocket.close(CLOSE_INTERNAL, "store unavailable")
        else:
            await websocket.close(subscriber.close_code or CLOSE_ABNORMAL, subscriber.close_reason)

    async def _hang_up(self, websocket: WebSocket, subscriber: Subscriber) -> None:
        code, reason = subscriber.close_code or CLOSE_ABNORMAL, subscriber.close_reason
        if hang_up := websocket.scope.get("extensions", {}).get(HANG_UP):
            hang_up(code, reason)
            return
        with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect):
            await asyncio.wait_for(websocket.close(code, reason), STALLED_CLOSE_SECONDS)

    async def refuse_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a WebSocket to a path where there is none."""
        if scope["path"] in ("/ws", "/ws/"):
            error: RelayError = UpgradeRequired("the path is /ws/{session_id}")
        else:
            error = NotFound("WebSockets are served at /ws/{session_id}")
        await self.refuse(error, scope, receive, send)

    async def refuse(self, error: RelayError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a handshake with an HTTP error."""
        self._telemetry.request_refused(error)
        await receive()  # websocket.connect

        async def send_as_denial(message: Message) -> None:
            await send({**message, "type": f"websocket.{message['type']}"})

        if "websocket.http.response" in scope.get("extensions", {}):
            await send_answer(error_answer(error), send_as_denial)
        else:
            await send({"type": "websocket.close", "code": 4000 + error.status, "reason": error.error})
