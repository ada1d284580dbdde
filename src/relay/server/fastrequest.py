"""A request of the fast door, and the head of its answer. See `fastdoor.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from relay.server.auth import ANYONE
from relay.server.http import JSON, Answer, Route


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

    __slots__ = ("caller", "content", "cycle", "query", "route")

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
        self.route = route
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


class FastCycle:
    """What uvicorn's protocol class sees of a request that waits for its answer: enough to queue others behind it."""

    __slots__ = ("disconnected", "keep_alive", "response_complete", "response_started", "tell")

    def __init__(self) -> None:
        self.tell: Callable[[], None] | None = None
        """What to call when the peer has gone."""
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.response_started = False

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
    """Heads of answers. The usual one is put together once a second, when uvicorn's date header changes."""

    def __init__(self) -> None:
        self.defaults: Sequence[tuple[bytes, bytes]] | None = None
        """The headers with which `usual` was made."""
        self.usual = b""
        """A JSON answer with status 200, to be filled in with its length and its body."""

    def renew(self, defaults: Sequence[tuple[bytes, bytes]]) -> None:
        """Make the usual one anew, with these headers of uvicorn's."""
        self.defaults = defaults
        head = STATUS_LINE[200] + _lines((*defaults, (b"content-type", JSON)))
        self.usual = head.replace(b"%", b"%%") + b"content-length: %d\r\ncache-control: no-store\r\n\r\n%b"

    def any(self, defaults: Sequence[tuple[bytes, bytes]], answer: Answer, length: int, *, close: bool) -> bytes:
        """That of any answer, whole."""
        described = ((b"content-type", answer.content_type), (b"content-length", b"%d" % length))
        end = ((b"connection", b"close"),) if close else ()
        every = (*defaults, *described, (b"cache-control", b"no-store"), *answer.headers, *end)
        return STATUS_LINE[answer.status] + _lines(every) + b"\r\n"


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)
