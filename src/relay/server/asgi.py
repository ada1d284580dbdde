"""The ASGI door: from an ASGI scope to an endpoint, and from its answer back. Works under any ASGI server.

It stands in front of FastAPI's router and calls the endpoints directly; FastAPI declares the same routes, for OpenAPI,
for everything that is not an endpoint and for an app that is mounted inside another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec.structs import replace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.core.relay import ClientGone
from relay.errors import (
    BodyTooLarge,
    OriginNotAllowed,
    RelayError,
    RequestTimeout,
    SessionNotFound,
    Unauthorized,
)
from relay.server.asgirequest import AsgiHead, AsgiRequest, head_of, is_utf8_path, joined
from relay.server.auth import ANY_ROLE, Caller
from relay.server.guard import Guard
from relay.server.hangups import HangUps
from relay.server.http import (
    INTERNAL_ERROR,
    NO_CONTENT,
    PIECE_BYTES,
    Answer,
    Headers,
    Reply,
    Route,
    as_answer,
    error_answer,
)
from relay.server.onewrite import write_whole
from relay.server.pages import with_page_headers
from relay.server.peers import LEAVE_SECONDS
from relay.server.telemetry import Telemetry
from relay.server.uploads import Uploads

PREFLIGHT: Headers = (
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
)
LINGER_SECONDS = 5.0
LINGER_BYTES = 256 * 1024**2
"""How much longer a refused upload is read and thrown away. Hanging up at once would reset the connection, and the
caller, still sending, would never see why."""

CLOSE = (b"connection", b"close")
NO_STORE = (b"cache-control", b"no-store")


class AsgiDoor:
    """Finds the endpoint for a path and serves requests with it."""

    def __init__(
        self, routes: Iterable[Route], guard: Guard, telemetry: Telemetry, uploads: Uploads, hang_ups: HangUps
    ) -> None:
        self.guard = guard
        self.telemetry = telemetry
        self._uploads = uploads
        self._hang_ups = hang_ups
        self._admitted: dict[tuple[str, str, bytes | None], Caller] = {}
        """Callers by the endpoint that they were let in to and the Authorization with which they came."""
        self._exact: dict[tuple[str, str], Route] = {}
        self._with_session: dict[tuple[str, str], Route] = {}
        for route in routes:
            first, parameter, _ = route.path.partition("{session_id}")
            table = self._with_session if parameter else self._exact
            table[route.method, first] = route

    def methods(self, path: str) -> list[str]:
        """The methods for which this path has an endpoint."""
        exact = {method for method, known in self._exact if known == path}
        cut = path.rfind("/") + 1
        with_session = {method for method, known in self._with_session if known == path[:cut] and cut < len(path)}
        return sorted(exact | with_session)

    def find(self, method: str, path: str) -> tuple[Route, str] | None:
        """The endpoint for this request and the session in its path; None if there is none."""
        if route := self._exact.get((method, path)):
            return route, ""
        cut = path.rfind("/") + 1
        if cut < len(path) and (route := self._with_session.get((method, path[:cut]))):
            return route, path[cut:]
        return None

    async def serve(self, route: Route, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint and send what it answers, or the error that it raises."""
        headers = joined(scope["headers"])
        client = scope.get("client")
        peer = client[0] if client else None
        query = scope["query_string"]
        request = AsgiRequest(route.method, headers, peer, session_id, query, receive, self._uploads, self._hang_ups)
        try:
            request.caller = self._known(route, headers) or await self._check(route, request)
            if session_id and "\ufffd" in session_id and not is_utf8_path(scope):
                raise SessionNotFound
            if route.max_body_bytes:
                body = request.body(route.max_body_bytes)
                request.content = body if isinstance(body, bytes) else await body
            reply = route.endpoint(request)
            answer: Reply = reply if isinstance(reply, bytes | Answer) else await reply
        except (BodyTooLarge, Unauthorized) as error:
            self.telemetry.request_refused(error)
            await _refuse_unread(error_answer(error), receive, send, self.guard.cors(headers))
            return
        except RequestTimeout as error:
            self.telemetry.request_refused(error)
            await _refuse_unread(error_answer(error), receive, send, self.guard.cors(headers), LEAVE_SECONDS)
            return
        except RelayError as error:
            self.telemetry.request_refused(error)
            answer = error_answer(error)
        except ClientGone:
            return
        except Exception as error:
            self.telemetry.internal_error(error)
            answer = INTERNAL_ERROR
        await send_answer(answer, send, self.guard.cors(headers) if b"origin" in headers else ())

    def _known(self, route: Route, headers: dict[bytes, bytes]) -> Caller | None:
        """The caller, if it was let in to this endpoint before and one more request of it passes."""
        caller = self._admitted.get((route.method, route.path, headers.get(b"authorization")))
        if caller is None or b"origin" in headers or not self.guard.spend(caller.key):
            return None
        return caller

    async def _check(self, route: Route, request: AsgiRequest) -> Caller:
        caller = await self.guard.check(request, route.access)
        # Let in for nothing but a role token, which is good for ever and everywhere; and there are only a few of those.
        if caller.key and caller.expires is None and caller.sessions == "*":
            self._admitted[route.method, route.path, request.headers.get(b"authorization")] = caller
        return caller

    async def pass_on(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request that is for none of our endpoints in to `app`: pages, and paths that do not exist."""
        head = head_of(scope, "")
        if head.method == "OPTIONS" and b"access-control-request-method" in head.headers:
            await self._preflight(head, scope, send)
            return
        try:
            await self.guard.check(head, ANY_ROLE)
        except RelayError as error:
            self.telemetry.request_refused(error)
            await _refuse_unread(error_answer(error), receive, send, self.guard.cors(head.headers))
            return
        await app(scope, receive, with_page_headers(send))

    async def _preflight(self, head: AsgiHead, scope: Scope, send: Send) -> None:
        """A browser asks whether a page of another site may send the request that it has in mind."""
        headers = self.guard.cors(head.headers)
        try:
            await self.guard.count(head)
            if not headers:
                raise OriginNotAllowed("add the page's origin to RELAY_ALLOWED_ORIGINS if it may use this relay")
        except RelayError as error:
            self.telemetry.request_refused(error)
            await send_answer(error_answer(error), send, headers)
            return
        methods = ", ".join(self.methods(route_path(scope))).encode()
        await send_answer(
            Answer(NO_CONTENT, b"", headers=((b"access-control-allow-methods", methods), *PREFLIGHT)), send, headers
        )


def route_path(scope: Scope) -> str:
    """The path below the point where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


async def send_answer(answer: Reply, send: Send, more_headers: Headers = ()) -> None:
    """Send a whole answer, a large one as fast as the caller reads it."""
    if more_headers:
        said = as_answer(answer)
        answer = replace(said, headers=(*said.headers, *more_headers))
    if not write_whole(answer, send):
        for message in messages(as_answer(answer)):
            await send(message)


def messages(answer: Answer) -> Iterable[Message]:
    """An answer in ASGI's words. The pieces of a large body are put together as they are asked for."""
    parts = [answer.body] if isinstance(answer.body, bytes) else answer.body
    length = (b"content-length", b"%d" % sum(map(len, parts)))
    described = () if answer.status == NO_CONTENT else ((b"content-type", answer.content_type), length)
    headers = [*described, NO_STORE, *answer.headers]
    start: Message = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if answer.is_long:
        return chain([start], map(_piece, pieces(parts)), [_end(b"")])
    return start, _end(parts[0])


def _end(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body}


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
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


async def _refuse_unread(
    answer: Answer, receive: Receive, send: Send, more_headers: Headers, linger_seconds: float = LINGER_SECONDS
) -> None:
    """Answer while the body still streams in, then let the caller notice before the connection is closed."""

    async def send_and_linger(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({**message, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_discard(receive), linger_seconds)
        await send({"type": "http.response.body", "body": b""})

    await send_answer(answer, send_and_linger, (CLOSE, *more_headers))


async def _discard(receive: Receive) -> None:
    size = 0
    while size < LINGER_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        size += len(message.get("body", b""))
