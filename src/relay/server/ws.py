"""/ws/{session_id}: a client listens for answers.

Two tasks per socket: one reads what the client says, the other sees to its `Feed`. A handshake is refused with a real
HTTP status and the same JSON as any other error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from starlette.types import Message, Receive, Scope, Send

from relay.config import Settings
from relay.core.relay import ClientGone, Relay
from relay.core.subscriber import CLOSE_TOKEN_EXPIRED, Frame, Subscriber
from relay.errors import InvalidField, InvalidJson, NotFound, RelayError, SessionNotFound, UpgradeRequired
from relay.models import check_id
from relay.server.allowance import Allowance
from relay.server.asgi import send_answer
from relay.server.asgirequest import head_of, is_utf8_path
from relay.server.auth import Caller
from relay.server.feed import GONE, Feed
from relay.server.guard import Guard, subprotocol
from relay.server.http import error_answer
from relay.server.outbox import Outbox
from relay.server.telemetry import Telemetry
from relay.wire import encode

PATH = "/ws/"

FRAMES_PER_TURN = 64
"""So many frames are heard before everybody else has a turn: a flood of tiny ones must not hold up the others."""

CLOSE_TOO_MANY = 1008
TOO_MANY = "too many messages"
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_ABNORMAL = 1006

HANG_UP = "relay.hang_up"
"""ASGI extension of our own server: write a close frame behind what is stuck, and abort soon after. That server also
counts a client's frames, those included that an application never sees."""

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


NOT_TEXT = _error_frame(InvalidField("a message must be text, not binary"))


def session_of(path: str) -> str | None:
    """The session to which a WebSocket at this path listens; None if there are no WebSockets at it."""
    session_id = path.removeprefix(PATH)
    return None if session_id == path or "/" in session_id else session_id or None


async def subscribe(relay: Relay, session_id: str) -> Subscriber:
    """Register a client. Raises what `Relay.subscribe` raises, and SessionNotFound for what cannot be an id."""
    try:
        check_id(session_id, "session_id")
    except InvalidField:
        raise SessionNotFound from None
    return await relay.subscribe(session_id)


class Sockets:
    """Serves WebSocket clients."""

    def __init__(
        self, relay: Relay, guard: Guard, settings: Settings, telemetry: Telemetry, now_ms: Callable[[], int]
    ) -> None:
        self._relay = relay
        self._outbox = Outbox(telemetry.internal_error)
        self._guard = guard
        self._max_frame_bytes = settings.max_frame_bytes
        self._max_frames_per_second = settings.max_frames_per_second
        self._telemetry = telemetry
        self._now_ms = now_ms

    async def serve(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Listen on behalf of one client until either side ends it."""
        head = head_of(scope, session_id)
        try:
            caller = await self._guard.check_socket(head, head.query)
            if "\ufffd" in session_id and not is_utf8_path(scope):
                raise SessionNotFound
            subscriber = await subscribe(self._relay, session_id)
        except RelayError as error:
            await self.refuse(error, scope, receive, send)
            return
        try:
            await receive()  # websocket.connect
            chosen = subprotocol(head.headers)
            if await _reached(send({"type": "websocket.accept", "subprotocol": chosen, "headers": []})):
                self._telemetry.client_connected(session_id)
                with self._until_expired(caller, subscriber):
                    close_code = await self._exchange(scope, receive, send, subscriber)
                self._telemetry.client_disconnected(session_id, close_code)
        finally:
            await self._relay.unsubscribe(subscriber)

    @contextlib.contextmanager
    def _until_expired(self, caller: Caller, subscriber: Subscriber) -> Iterator[None]:
        """Close the socket when the token with which it was opened expires."""
        if caller.expires is None:
            yield
            return
        seconds_left = caller.expires - self._now_ms() / 1000
        timer = asyncio.get_running_loop().call_later(
            seconds_left, subscriber.close, CLOSE_TOKEN_EXPIRED, "token expired"
        )
        try:
            yield
        finally:
            timer.cancel()

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, subscriber: Subscriber) -> int:
        """Read and write until either ends; returns the close code."""
        extensions = scope.get("extensions", {})
        reader = asyncio.create_task(self._read(receive, subscriber, counted_below=HANG_UP in extensions))
        writer = asyncio.create_task(self._write(send, subscriber))
        subscriber.on_stalled = writer.cancel
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if subscriber.stalled:
                await self._hang_up(extensions.get(HANG_UP), send, subscriber)
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        return (subscriber.close_code or CLOSE_ABNORMAL) if reader.cancelled() else reader.result()

    async def _read(self, receive: Receive, subscriber: Subscriber, *, counted_below: bool) -> int:
        """Hear what the client says; returns the code of whoever closed first, it or we."""
        now = asyncio.get_running_loop().time
        allowance = None if counted_below else Allowance(self._max_frames_per_second, now())
        for count in itertools.count(1):
            message = await receive()
            if message["type"] == "websocket.disconnect":
                break
            text = message.get("text")
            if allowance and not allowance.take(1, now()):
                subscriber.close(CLOSE_TOO_MANY, TOO_MANY)
            elif max(len(message.get("bytes") or b""), len((text or "").encode())) > self._max_frame_bytes:
                subscriber.close(CLOSE_TOO_BIG, "message too big")
            elif text is None:
                subscriber.notify(NOT_TEXT)
            elif reply := answer_client(text, self._now_ms()):
                subscriber.notify(reply)
            if count % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        return subscriber.close_code or int(message.get("code") or CLOSE_ABNORMAL)

    async def _write(self, send: Send, subscriber: Subscriber) -> None:
        """Tell the client what there is to tell, then close."""
        try:
            await Feed(self._outbox, send, subscriber).follow(self._relay)
        except ClientGone:
            return
        except RelayError:
            subscriber.close(CLOSE_INTERNAL, "store unavailable")
        except Exception as error:
            self._telemetry.internal_error(error)
            subscriber.close(CLOSE_INTERNAL, "internal error")
        subscriber.writing_since = asyncio.get_running_loop().time()
        await _reached(send(_close(subscriber)))

    async def _hang_up(self, at_once: Callable[[int, str], None] | None, send: Send, subscriber: Subscriber) -> None:
        """Close a connection whose peer does not read."""
        if at_once is not None:
            at_once(subscriber.close_code or CLOSE_ABNORMAL, subscriber.close_reason)
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_reached(send(_close(subscriber))), STALLED_CLOSE_SECONDS)

    async def refuse_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a WebSocket to a path where there is none."""
        head = head_of(scope, "")
        try:
            await self._guard.check_socket(head, head.query)
        except RelayError as refusal:
            await self.refuse(refusal, scope, receive, send)
            return
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


async def _reached(sending: Awaitable[None]) -> bool:
    """Whether the client was still there."""
    try:
        await sending
    except GONE:
        return False
    return True


def _close(subscriber: Subscriber) -> Message:
    code = subscriber.close_code or CLOSE_ABNORMAL
    return {"type": "websocket.close", "code": code, "reason": subscriber.close_reason}
