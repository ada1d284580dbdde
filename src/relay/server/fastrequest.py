"""A request of the fast door. See `fastdoor.py`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from relay.server.auth import ANYONE
from relay.server.http import Route


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

    __slots__ = ("by_hand", "caller", "content", "cycle", "endpoint", "query", "rank")

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
        self.rank = route.rank
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
