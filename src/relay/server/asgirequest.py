"""A request of the ASGI door, and its body. See `asgi.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import CoroutineType
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import Message, Receive, Scope

from relay.core.relay import ClientGone
from relay.errors import BodyTooLarge, MessageTooLarge
from relay.server.auth import ANYONE, Caller
from relay.server.drive import rest
from relay.server.hangups import HangUps
from relay.server.uploads import Uploads


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; what is given twice is joined with a comma."""
    headers = headers if isinstance(headers, list) else list(headers)
    found = dict(headers)
    if len(found) == len(headers):
        return found
    found.clear()
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def is_utf8_path(scope: Scope) -> bool:
    """Whether the path was UTF-8: servers put U+FFFD for what was not, and all such ids would be one."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


class AsgiHead(msgspec.Struct):  # which is made faster than another object
    """The head of a request or of a handshake, as the guard sees it."""

    method: str
    headers: dict[bytes, bytes]
    peer: str | None
    session_id: str
    query: bytes


def head_of(scope: Scope, session_id: str) -> AsgiHead:
    """The head in an ASGI scope, whose path names this session."""
    client = scope.get("client")
    peer = client[0] if client else None
    return AsgiHead(scope.get("method", "GET"), joined(scope["headers"]), peer, session_id, scope["query_string"])


class AsgiRequest(AsgiHead):
    """A `Request` over ASGI's receive channel."""

    receive: Receive
    uploads: Uploads
    hang_ups: HangUps
    by_hand: bool = False
    caller: Caller = ANYONE
    content: bytes = b""

    def body(self, max_bytes: int) -> bytes | Awaitable[bytes]:
        """The whole body, or something to wait for if it has not come yet.

        Raises BodyTooLarge as soon as it is known to be longer, RequestTimeout if it does not arrive in time,
        ClientGone if it never ends.
        """
        length = self.headers.get(b"content-length")
        if length is not None and int(length) > max_bytes:
            raise BodyTooLarge(f"the body is over {max_bytes} bytes")
        receiving: Awaitable[Message] = self.receive()
        if isinstance(receiving, CoroutineType):  # not every server's is one
            try:
                waits_for = receiving.send(None)
            except StopIteration as done:
                first: Message = done.value
                body: bytes = first.get("body", b"")
                if first["type"] == "http.request" and not first.get("more_body", False) and len(body) <= max_bytes:
                    return body  # most often it is there already: nothing to watch over
                receiving = _received(first)
            else:
                receiving = rest(receiving, waits_for)
        return self.uploads.read(self._whole_body(receiving, max_bytes))

    async def _whole_body(self, receiving: Awaitable[Message], max_bytes: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= max_bytes:
            message = await (self.receive() if parts else receiving)
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        if size > max_bytes:
            kind = BodyTooLarge if more else MessageTooLarge
            raise kind(f"the body is over {max_bytes} bytes")
        return b"".join(parts)

    def when_gone(self, tell: Callable[[], None]) -> Callable[[], object]:
        return self.hang_ups.watch(self.receive, tell)


async def _received(message: Message) -> Message:
    return message
