"""The fast door of `relay serve`: endpoints called straight from the parser's callbacks, without an ASGI cycle.

It is a shorter way to the same endpoints, not a second set of rules. A request that is in any way unusual is handed to
the ASGI path as if this module did not exist, before anything of it was acted upon. `docs/fastdoor.md` says how it
works and why it is safe.
"""

from __future__ import annotations

import re
from typing import Any

import httptools

from relay.errors import BadRequest, HeadersTooLarge, RelayError, RequestTimeout
from relay.server.fastfeed import SOCKETS_KEY
from relay.server.fastrequest import FastHead, FastRequest
from relay.server.fastsocket import FastSocket
from relay.server.inbox import Inbox
from relay.server.knownheads import MAX_BODY_BYTES, KnownHeads
from relay.server.protocols import Part
from relay.server.serving import Serving

WEBSOCKET_PATH = b"/ws/"
WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
SUBPROTOCOLS = re.compile(rb"%b(?:[ \t]*,[ \t]*%b)*" % (_NAME, _NAME))

ALL = Part.ALL

STEPS = 2
"""A request that arrives whole brings a connection so many steps further: its head and its end."""

MAX_QUEUED = 2
"""So many requests may wait behind one that is being served before the connection is no longer read."""

BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})

MAX_PIPELINED = 256
"""More than that in one piece is no client's way; it is refused and the connection closed."""

UNUSUAL = frozenset({b"expect", b"origin", b"transfer-encoding", b"upgrade"})
"""A request with one of these headers is not for this door."""


class FastDoor(Serving):
    """Serves what is usual by itself, and leaves the rest to the class below."""

    __slots__ = ("_inbox", "_known", "_read_bytes", "_request", "_served", "_spend")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inbox: Inbox = self.app_state[SOCKETS_KEY].inbox
        self._known = KnownHeads()
        self._spend = self._door.guard.spend
        self._request: FastRequest | None = None
        """The request whose body is arriving, if it is for this door."""
        self._served: FastRequest | None = None
        """The last request that came through the parser and was served here."""
        self._read_bytes = 0
        """Bytes of all reads that hold a part of the head that is arriving: it is not longer than that."""

    def data_received(self, data: bytes) -> None:
        if self._read is not None:
            self._inbox.serve_all()  # first what came first
        cycle = self.cycle
        if self._part is not ALL or self._quiet_bytes:
            self._parse(data)  # what has begun goes on
            return
        # Only if free (`_is_free`, without its call): what is found may be the very request that is being served.
        if (cycle is None or cycle.response_complete) and not self.flow.write_paused:
            request = self._known.find(data)
            if request is not None:
                spend = self._spend
                if spend(request.caller.key):
                    self._step += 1
                    self._read = request
                    self._inbox.add(self, request.rank)
                    return
                request.content = b""  # not kept: it is read again, by the parser
        self._served = None
        step = self._step
        self._parse(data)
        # One request that began and ended here, and nothing else.
        if self._served is not None and self._step - step == STEPS and self._part is Part.ALL:
            self._known.learn(data, self._served)

    def connection_lost(self, exc: Exception | None) -> None:
        self._serve_what_came()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._serve_what_came()
        super().shutdown()

    def _serve_what_came(self) -> None:
        """Serve what was read from this connection, before what happens to it now."""
        if self._read is not None:
            self._inbox.serve_all()

    def _is_free(self) -> bool:
        """Whether no other request comes first, and the peer reads its answers."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    # What the parser tells

    def _parse(self, data: bytes) -> None:
        self._quiet_bytes += len(data)
        self._read_bytes = len(data) + (self._read_bytes if self._part is Part.HEAD else 0)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # An upgrade that we do not follow is an ordinary request, and what comes behind it the next one; unless
                # it has a body, which the parser does not tell from that: then it is the last.
                if BODY_HEADERS.isdisjoint(dict(self.headers)):
                    data = data[upgrade.args[0] :]
                else:
                    self.cycle.keep_alive = False
                    return
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
        if self._quiet_bytes > self._peers.max_header_bytes and not self._left:
            self._refuse(HeadersTooLarge(f"at most {self._peers.max_header_bytes} bytes"))

    def on_message_begin(self) -> None:
        # uvicorn's own builds a scope; that waits until it is known to be needed.
        self.url = b""
        self.headers = []
        self._head_bytes = 0
        self._part = Part.HEAD
        self._step += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is not Part.HEAD:
            return  # a trailer: it comes too late to be looked at
        if len(self.headers) >= self._peers.max_header_fields:
            raise HeadersTooLarge
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._read_bytes > self._peers.max_header_bytes:
            self._check_head()
        self._request = self._usual_request()
        if self._request is None:
            self._fall_through()
        else:
            self._quiet_bytes = 0
            self._part = Part.BODY

    def on_body(self, body: bytes) -> None:
        request = self._request
        if request is None:
            super().on_body(body)
            return
        self._quiet_bytes = 0
        request.content = request.content + body if request.content else body

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            super().on_message_complete()
            return
        self._request = None
        self._quiet_bytes = 0
        self._part = Part.ALL
        self._step += 1
        self._served = self._read = request
        self.serve()

    def _check_head(self) -> None:
        """Raise HeadersTooLarge, which the parser passes on, if the head is over its bounds."""
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head_bytes > self._peers.max_header_bytes:
            raise HeadersTooLarge

    def _fall_through(self) -> None:
        """Give the request to the ASGI path, which finds everything as if it had heard the parser itself."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise BadRequest  # the parser passes it on
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_QUEUED:
            self.flow.resume_reading()  # only while we read is it seen that the peer has gone

    def _usual_request(self) -> FastRequest | None:
        """The request, if it is for this door and its caller is let in without further questions."""
        if not self._is_free():
            return None
        parser = self.parser
        headers = dict(self.headers)
        if len(headers) != len(self.headers):
            return None
        method = parser.get_method().decode()
        if not _short(method, headers.get(b"content-length")):
            return None
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return None
        path, _, query = self.url.partition(b"?")
        found = self._door.find(method, path.decode("latin-1"))
        if found is None or b"%" in path or b"#" in self.url or not path.isascii():
            return None
        if not UNUSUAL.isdisjoint(headers):
            return None
        peer = self.client[0] if self.client else None
        request = FastRequest(method, headers, peer, *found, query)
        guard = self._door.guard
        try:
            request.caller = guard.admit(request, found[0].access)
        except RelayError:
            return None  # the ASGI path says why, and counts it
        return request if self._spend(request.caller.key) else None

    def handle_websocket_upgrade(self) -> None:
        """Let the fast sockets have it, unless there is anything unusual about it."""
        # A socket is not told that the peer has stopped reading before: its frames would pile up without a bound.
        if not self._is_free():
            self._refuse(BadRequest("an upgrade must wait for the answers to what was asked before"))
            return
        headers = dict(self.headers)
        path, _, query = self.url.partition(b"?")
        session_id = path.removeprefix(WEBSOCKET_PATH)
        key = headers.get(b"sec-websocket-key", b"")
        if (
            len(headers) != len(self.headers)
            or self.config.ws_per_message_deflate
            or not path.startswith(WEBSOCKET_PATH)
            or not _plain(self.url, session_id)
            or headers.get(b"sec-websocket-version") != b"13"
            or WEBSOCKET_KEY.fullmatch(key) is None
            or SUBPROTOCOLS.fullmatch(headers.get(b"sec-websocket-protocol", b"x")) is None
        ):
            super().handle_websocket_upgrade()
            return
        self.write_now()
        self.connections.discard(self)
        peer = self.client[0] if self.client else None
        socket = FastSocket(
            self.app_state[SOCKETS_KEY], self.transport, self.loop, self.connections, self.server_state.tasks
        )
        self.transport.set_protocol(socket)
        socket.open(FastHead("GET", headers, peer, session_id.decode()), query, key)

    def _cut(self) -> None:
        if self._request is not None:
            self._refuse(RequestTimeout(f"the body takes longer than {self._peers.body_seconds:g} s"))
        else:
            super()._cut()


def _plain(url: bytes, session_id: bytes) -> bool:
    """Whether the session id stands in the path as it is."""
    return bool(session_id) and url.isascii() and b"/" not in session_id and b"%" not in session_id and b"#" not in url


def _short(method: str, content_length: bytes | None) -> bool:
    """Whether the request has the body that one expects of its method, and that is short."""
    if method != "POST":
        return content_length is None
    return content_length is not None and int(content_length) <= MAX_BODY_BYTES
