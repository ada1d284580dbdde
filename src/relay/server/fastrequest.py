"""A request of the fast door, and the head of its answer. See `fastdoor.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from relay.server.auth import ANYONE
from relay.server.http import JSON, Answer, Route

MAX_REMEMBERED_LENGTH = 1_024
"""Answers to what is posted are shorter; the others take so long that their heads do not matter."""


class FastHead:
    """The head of a request, as the guard sees it."""

    __slots__ = ("headers", "method", "peer", "session_id")

    def __init__(self, method: str, headers: dict[bytes, bytes], peer: str | None, session_id: str) -> None:
        self.method = method
        self.headers = headers
        self.peer = peer
        self.session_id = session_id


class FastRequest(FastHead):
    """A `Request` whose body is complete before the endpoint is called."""

    __slots__ = ("by_hand", "caller", "content", "cycle", "endpoint", "query")

    def __init__(
        self,
        method: str,
        headers: dict[bytes, bytes],
        peer: str | None,
        route: Route,
        session_id: str,
        query: bytes,
    ) -> None:
        super().__init__(method, headers, peer, session_id)
        self.endpoint = route.endpoint
        self.by_hand = True
        self.query = query
        self.caller = ANYONE
        self.content = b""
        self.cycle: FastCycle | None = None
        """What stands for it while its answer is not there yet."""

    def when_gone(self, tell: Callable[[], None]) -> Callable[[], object]:
        cycle = self.waiting()
        cycle.tell = tell
        cycle.set()  # the peer may have gone already, while the endpoint waited for something else
        return cycle.forget

    def waiting(self) -> FastCycle:
        """Its cycle, from now on if it has none."""
        if self.cycle is None:
            self.cycle = FastCycle()
        return self.cycle


class FastCycle(msgspec.Struct):  # which is made faster than another object
    """What uvicorn's protocol class sees of a request that waits for its answer: enough to queue others behind it."""

    disconnected: bool = False
    keep_alive: bool = True
    response_complete: bool = False
    response_started: bool = False
    tell: Callable[[], None] | None = None
    """What to call when the peer has gone."""

    @property
    def message_event(self) -> FastCycle:
        """uvicorn sets this event when the peer has gone."""
        return self

    def set(self) -> None:
        if self.disconnected and self.tell is not None:
            self.tell()

    def forget(self) -> None:
        """Whoever is to be told no longer cares."""
        self.tell = None


class Heads:
    """Heads of answers. The usual ones are put together anew once a second, when uvicorn's date header changes."""

    def __init__(self) -> None:
        self._defaults: Sequence[tuple[bytes, bytes]] | None = None
        """The headers with which the usual ones were made."""
        self._usual: dict[int, bytes] = {}
        """By the length of the body."""
        self._start = b""

    def usual(self, body: bytes, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """A JSON answer with status 200, with its head and these headers of uvicorn's."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._usual.clear()
            self._start = STATUS_LINE[200] + _lines((*defaults, (b"content-type", JSON)))
        return (self._usual.get(len(body)) or self._make(len(body))) + body

    def _make(self, length: int) -> bytes:
        head = self._start + b"content-length: %d\r\ncache-control: no-store\r\n\r\n" % length
        if length <= MAX_REMEMBERED_LENGTH:
            self._usual[length] = head
        return head

    def any(self, defaults: Sequence[tuple[bytes, bytes]], answer: Answer, length: int, *, close: bool) -> bytes:
        """That of any answer, whole."""
        described = ((b"content-type", answer.content_type), (b"content-length", b"%d" % length))
        end = ((b"connection", b"close"),) if close else ()
        every = (*defaults, *described, (b"cache-control", b"no-store"), *answer.headers, *end)
        return STATUS_LINE[answer.status] + _lines(every) + b"\r\n"


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)
