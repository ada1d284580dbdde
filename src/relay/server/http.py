"""An endpoint's view of HTTP: a request to read from, an answer to give. No door and no framework shows through.

Every door (ASGI under any server, or a protocol class of our own) makes a `Request` and sends an `Answer`; the
endpoints in `rest.py` are written once against these two.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from relay.errors import InternalError, RelayError, Unauthorized
from relay.server.auth import Access, Caller
from relay.wire import encode

JSON = b"application/json"
NO_CONTENT = 204
"""The status of an answer that has no body, and so does not describe one."""
Headers = tuple[tuple[bytes, bytes], ...]

PIECE_BYTES = 65_536
"""How much of a large answer is handed to the server at a time."""


class Request(Protocol):
    """What an endpoint may ask of the request it serves."""

    method: str
    headers: dict[bytes, bytes]
    """By lower-case name; what was given twice is joined with a comma, and then no longer passes for one value."""
    peer: str | None
    """The address at the other end of the connection; None if it has none."""
    session_id: str
    """The path parameter; empty on paths without one."""
    query: bytes
    caller: Caller
    """Who is asking; the guard has let it in."""

    by_hand: bool
    """Whether the endpoint is driven by hand (`drive.py`), and not by a task."""

    content: bytes
    """The whole body, if the endpoint takes one; to be read before the endpoint first waits."""

    def when_gone(self, tell: Callable[[], None]) -> Callable[[], object]:
        """Call `tell` when the caller hangs up, unless the function that is returned was called before."""


class Answer(msgspec.Struct, frozen=True):
    """Status and body, and what is special in the headers; length and no-store are added by the door.

    A body that is long comes in parts, which are the stored messages themselves: a door sends them one after the other
    as the caller reads, and a caller who does not read holds no copy of them.
    """

    status: int
    body: bytes | Sequence[bytes]
    content_type: bytes = JSON
    headers: Headers = ()

    @property
    def is_long(self) -> bool:
        """Whether it is to be sent as the caller reads."""
        return not isinstance(self.body, bytes)


Reply = Answer | bytes
"""What an endpoint gives back. Mere bytes are the usual answer: a JSON document, status 200, no further headers."""

LaterReply = Coroutine[Any, Any, Reply]
Endpoint = Callable[[Request], Reply | LaterReply]
"""Returns its answer or, if it may have to wait for that, a coroutine."""


def as_answer(reply: Reply) -> Answer:
    """The same, with everything said."""
    return Answer(200, reply) if isinstance(reply, bytes) else reply


def in_parts(parts: Sequence[bytes]) -> Reply:
    """A JSON document that is given in parts; nothing is copied unless it is short."""
    return Answer(200, parts) if sum(map(len, parts)) > PIECE_BYTES else b"".join(parts)


RANKS = 4
LAST_RANK = RANKS - 1
"""The rank of what is not asked often enough to have one of its own."""


class Route(msgspec.Struct, frozen=True):
    """Where an endpoint is found, and by whom. A path has at most one parameter, and it is the last part."""

    method: str
    path: str
    endpoint: Endpoint
    access: Access
    max_body_bytes: int = 0
    """How long a body the endpoint takes; 0 if it takes none."""
    rank: int = LAST_RANK
    """Of requests that come at once, those of the lowest rank are served first (`inbox.py`)."""


def error_answer(error: RelayError) -> Answer:
    """The one JSON shape of every error."""
    headers: Headers = ()
    if isinstance(error, Unauthorized):
        headers = ((b"www-authenticate", b"Bearer"),)
    elif error.retry_after_seconds is not None:
        headers = ((b"retry-after", b"%d" % error.retry_after_seconds),)
    return Answer(error.status, encode(error.as_dict()), headers=headers)


INTERNAL_ERROR = error_answer(InternalError())
