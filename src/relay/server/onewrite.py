"""Under uvicorn: the head and the body of an answer in one write.

uvicorn writes the head as soon as it is told of it, and uvloop what it is given at once: two system calls for each
answer, each of which wakes the peer. Together they take a third of all the time that the ASGI door needs for a request.
ASGI has no word for "the body comes at once", so uvicorn's own object for the request is given an envelope in place of
its connection while it is told of both. Any other server, or a middleware's `send`, is left alone.
"""

from __future__ import annotations

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Envelope:
    """What uvicorn's object for a request sees of its connection: it may write to it and close it."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        cycle.transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        """Keep the head; with the body behind it, write both."""
        if self._head:
            self._post(data)
        else:
            self._head = data

    def close(self) -> None:
        """Close the connection, behind its last answer."""
        self._post()
        self._transport.close()

    def seal(self) -> None:
        """Leave the connection to uvicorn again."""
        self._cycle.transport = self._transport
        self._post()

    def _post(self, body: bytes = b"") -> None:
        if self._head:
            self._transport.write(self._head + body)
            self._head = b""


def envelope(send: Send) -> Envelope | None:
    """To be sealed when an answer has been sent by `send`; None if that is not uvicorn's own, or has to wait."""
    cycle = getattr(send, "__self__", None)
    return Envelope(cycle) if type(cycle) is RequestResponseCycle and not cycle.flow.write_paused else None
