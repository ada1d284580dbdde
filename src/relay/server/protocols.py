"""Our additions to uvicorn's HTTP protocol class, used by `relay serve`: what no ASGI application can do from inside.

It is not a documented extension point of uvicorn: the version is pinned and the tests run through it. So with
`ws_protocol.py`.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from relay.errors import BadRequest, HeadersTooLarge, RelayError, RequestTimeout, TooManyConnections
from relay.server.http import error_answer
from relay.server.peers import STATE_KEY, Leaving, Peers, Unread

ABORT_SECONDS = 4.0
"""How long a peer may still take to read what was sent before the connection is closed, close frame included."""


def response(error: RelayError, more_headers: bytes = b"") -> bytes:
    """The error as a whole HTTP response after which the connection is closed."""
    answer = error_answer(error)
    assert isinstance(answer.body, bytes)
    return (
        STATUS_LINE[answer.status]
        + b"content-type: application/json\r\ncontent-length: %d\r\n" % len(answer.body)
        + b"".join(b"%b: %b\r\n" % header for header in answer.headers)
        + b"cache-control: no-store\r\nconnection: close\r\n"
        + more_headers
        + b"\r\n"
        + answer.body
    )


class Part(Enum):
    """How far a request has arrived."""

    HEAD = 1
    BODY = 2
    ALL = 3


class HttpProtocol(HttpToolsProtocol):
    """Bounds what a peer may send and how long it may take, and answers what is not even HTTP in our shape.

    A request must arrive in time and its answer must be read; how long the answer takes is not the peer's affair.
    """

    # Beside uvicorn's own attributes: with all of them in one dictionary Python would look each up by name.
    __slots__ = (
        "_head_bytes",
        "_left",
        "_part",
        "_peers",
        "_quiet_bytes",
        "_seen_at",
        "_seen_step",
        "_step",
        "_unread",
        "_waiting_cycle",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._peers: Peers = self.app_state[STATE_KEY]
        self._unread = Unread()
        self._waiting_cycle: RequestResponseCycle | None = None
        """The request that is being served while others are pipelined behind it."""
        self._head_bytes = 0
        self._quiet_bytes = 0
        """Bytes taken in since the parser last had something to tell: a header, or a line, without end."""
        self._left = False
        self._part = Part.HEAD
        self._step = 0
        """Counts what brings a connection further: parts of requests and answers, but not bytes."""
        self._seen_step = -1
        self._seen_at = 0.0
        """Since when the sweep has seen it at the same step."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peers.connections = self.connections
        if len(self.connections) > self._peers.max_connections:
            error = TooManyConnections(f"this server has at most {self._peers.max_connections}")
            self._leave(error, wait=True)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._reached(Part.HEAD)

    def on_headers_complete(self) -> None:
        self._quiet_bytes = 0
        self._reached(Part.BODY)
        if self.cycle is not None and not self.cycle.response_complete and not self.pipeline:
            self._waiting_cycle = self.cycle
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet_bytes = 0
        self._reached(Part.ALL)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # uvicorn's own would start a timer for each answer, and lose it to any byte that follows.
        self._step += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._waiting_cycle, app = self.pipeline.pop()
            self._start_asgi_task(self._waiting_cycle, app)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.moved()

    def _reached(self, part: Part) -> None:
        self._part = part
        self._step += 1

    def _head_too_large(self) -> bool:
        peers = self._peers
        return self._head_bytes > peers.max_header_bytes or len(self.headers) >= peers.max_header_fields

    def _should_upgrade(self) -> bool:
        # A handshake is a GET without a body; uvicorn would never answer one that has a body.
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return self.scope["method"] == "GET" and not has_body and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Not worth a line in the log: any caller can ask for anything."""

    def send_400_response(self, msg: str) -> None:
        peers = self._peers
        if self.headers is not None and self._head_too_large():
            bounds = f"at most {peers.max_header_fields} fields and {peers.max_header_bytes} bytes"
            self._refuse(HeadersTooLarge(bounds))
        else:
            self._refuse(BadRequest(msg))

    def _refuse(self, error: RelayError) -> None:
        if any(cycle.response_started and not cycle.response_complete for cycle in self._cycles()):
            self.transport.abort()  # in the middle of an answer there is no place for another
        else:
            self._leave(error)

    def _leave(self, error: RelayError, *, wait: bool = False) -> None:
        """Say why, and have nothing more to do with the connection."""
        self._left = True
        self._peers.telemetry.request_refused(error)
        self.connections.discard(self)
        self._tell_gone()
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]
        Leaving(self.transport, self._peers, response(error), wait=wait)

    def look(self, now: float) -> None:
        """The sweep's question: is it still worth waiting for this peer?"""
        closing = self.transport.is_closing()
        if self._unread.seconds(self.transport, now) > (ABORT_SECONDS if closing else self._peers.send_seconds):
            self.transport.abort()
        elif self._step != self._seen_step or self.flow.read_paused:  # paused: it is we who keep the peer waiting
            self._seen_step, self._seen_at = self._step, now
        elif not closing and now - self._seen_at > self._patience():
            self._cut()

    def _patience(self) -> float:
        """How many seconds may pass until the peer brings the connection one step further."""
        if self._part is Part.BODY and not self.pipeline:
            return self._peers.body_seconds
        if self.cycle is not None and not self.cycle.response_complete:
            return float("inf")  # it waits for us, if only for the answer to an earlier request
        return self._peers.header_seconds if self._part is Part.HEAD else self.timeout_keep_alive

    def _cut(self) -> None:
        if self._part is Part.HEAD and (self._step or self._quiet_bytes):  # else nothing came: browsers connect early
            self._refuse(RequestTimeout(f"the head takes longer than {self._peers.header_seconds:g} s"))
        elif self._part is Part.BODY and not self.cycle.response_complete:
            self._refuse(RequestTimeout(f"the body takes longer than {self._peers.body_seconds:g} s"))
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell_gone()
        super().connection_lost(exc)

    def _tell_gone(self) -> None:
        # uvicorn tells only the newest of several pipelined requests that the peer is gone.
        for cycle in self._cycles():
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def _cycles(self) -> list[RequestResponseCycle]:
        """Every request that is served or waits for its turn."""
        cycles = (self._waiting_cycle, self.cycle, *(cycle for cycle, _ in self.pipeline))
        return [cycle for cycle in cycles if cycle is not None]

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)
