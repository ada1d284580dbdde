"""The ASGI door: from an ASGI scope to an endpoint, and from its answer back. Works under any ASGI server.

It stands in front of FastAPI's router and calls the endpoints directly; FastAPI declares the same routes, for OpenAPI,
for everything that is not an endpoint and for an app that is mounted inside another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_to_bytes

from starlette.types import Message, Receive, Scope, Send

from relay.core.relay import ClientGone
from relay.errors import BodyTooLarge, MessageTooLarge, RelayError, RequestTimeout, SessionNotFound
from relay.server.http import INTERNAL_ERROR, Answer, Endpoint, Route, error_answer
from relay.server.telemetry import Telemetry
from relay.server.uploads import Uploads

PIECE_BYTES = 65_536
"""How much of a large answer is handed to the server at a time."""

LINGER_SECONDS = 5.0
LINGER_BYTES = 256 * 1024**2
"""How much longer a refused upload is read and thrown away. Hanging up at once would reset the connection, and the
caller, still sending, would never see why."""

CLOSE = (b"connection", b"close")


def is_utf8_path(scope: Scope) -> bool:
    """Whether the path was UTF-8: servers put U+FFFD for what was not, and all such ids would be one."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


class AsgiRequest:
    """A `Request` over ASGI's receive channel."""

    __slots__ = ("_receive", "_scope", "_uploads", "query", "session_id")

    def __init__(self, scope: Scope, receive: Receive, session_id: str, uploads: Uploads) -> None:
        self._scope = scope
        self._receive = receive
        self._uploads = uploads
        self.session_id = session_id
        self.query: bytes = scope["query_string"]

    def header(self, name: bytes) -> bytes | None:
        for key, value in self._scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    async def body(self, max_bytes: int) -> bytes:
        length = self.header(b"content-length")
        if length is not None and int(length) > max_bytes:
            raise BodyTooLarge(f"the body is over {max_bytes} bytes")
        return await self._uploads.read(self._whole_body(max_bytes))

    async def _whole_body(self, max_bytes: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= max_bytes:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        if size > max_bytes:
            kind = BodyTooLarge if more else MessageTooLarge
            raise kind(f"the body is over {max_bytes} bytes")
        return b"".join(parts)

    async def gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class AsgiDoor:
    """Finds the endpoint for a path and serves requests with it."""

    def __init__(self, routes: Iterable[Route], telemetry: Telemetry, uploads: Uploads) -> None:
        self._telemetry = telemetry
        self._uploads = uploads
        self._exact: dict[tuple[str, str], Endpoint] = {}
        self._with_session: dict[tuple[str, str], Endpoint] = {}
        for route in routes:
            first, parameter, _ = route.path.partition("{session_id}")
            table = self._with_session if parameter else self._exact
            table[route.method, first] = route.endpoint

    def methods(self, path: str) -> list[str]:
        """The methods for which this path has an endpoint."""
        exact = {method for method, known in self._exact if known == path}
        cut = path.rfind("/") + 1
        with_session = {method for method, known in self._with_session if known == path[:cut] and cut < len(path)}
        return sorted(exact | with_session)

    def find(self, scope: Scope) -> tuple[Endpoint, str] | None:
        """The endpoint for this request and the session in its path; None if there is none."""
        path: str = scope["path"]
        if endpoint := self._exact.get((scope["method"], path)):
            return endpoint, ""
        cut = path.rfind("/") + 1
        if cut < len(path) and (endpoint := self._with_session.get((scope["method"], path[:cut]))):
            return endpoint, path[cut:]
        return None

    async def serve(self, endpoint: Endpoint, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint and send what it answers, or the error that it raises."""
        try:
            if "\ufffd" in session_id and not is_utf8_path(scope):
                raise SessionNotFound
            answer = await endpoint(AsgiRequest(scope, receive, session_id, self._uploads))
        except BodyTooLarge as error:
            self._telemetry.request_refused(error)
            await _refuse_upload(error_answer(error), receive, send)
            return
        except RequestTimeout as error:
            self._telemetry.request_refused(error)
            await send_answer(error_answer(error), send, CLOSE)
            return
        except RelayError as error:
            self._telemetry.request_refused(error)
            answer = error_answer(error)
        except ClientGone:
            return
        except Exception as error:
            self._telemetry.internal_error(error)
            answer = INTERNAL_ERROR
        await send_answer(answer, send)


async def send_answer(answer: Answer, send: Send, *more_headers: tuple[bytes, bytes]) -> None:
    """Send a whole answer, a large one as fast as the caller reads it."""
    parts = [answer.body] if isinstance(answer.body, bytes) else answer.body
    length = sum(map(len, parts))
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", b"%d" % length),
        (b"cache-control", b"no-store"),
        *answer.headers,
        *more_headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if length > PIECE_BYTES:
        for piece in _pieces(parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        parts = []
    await send({"type": "http.response.body", "body": b"".join(parts)})


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces, each of about PIECE_BYTES."""
    piece: list[bytes] = []
    size = 0
    for part in parts:
        piece.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


async def _refuse_upload(answer: Answer, receive: Receive, send: Send) -> None:
    """Answer while the body still streams in, then let the caller notice before the connection is closed."""

    async def send_and_linger(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({**message, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_discard(receive), LINGER_SECONDS)
        await send({"type": "http.response.body", "body": b""})

    await send_answer(answer, send_and_linger, CLOSE)


async def _discard(receive: Receive) -> None:
    size = 0
    while size < LINGER_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        size += len(message.get("body", b""))
