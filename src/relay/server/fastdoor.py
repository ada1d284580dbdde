"""The fast door of `relay serve`: endpoints called straight from the parser's callbacks, without an ASGI cycle.

It is a shorter way to the same endpoints, not a second set of rules. A request that is in any way unusual is handed to
the ASGI path as if this module did not exist, before anything of it was acted upon. `docs/fastdoor.md` says how it
works and why it is safe.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from relay.core.relay import ClientGone
from relay.errors import HeadersTooLarge, RelayError, RequestTimeout
from relay.server.asgi import PIECE_BYTES, AsgiDoor, pieces
from relay.server.auth import ANYONE, Access
from relay.server.drive import Waiting, begin
from relay.server.fastsocket import SOCKETS_KEY, FastSocket
from relay.server.http import INTERNAL_ERROR, JSON, Answer, Route, error_answer
from relay.server.protocols import HttpProtocol, Part

DOOR_KEY = "relay.door"
"""Where a protocol object finds the endpoints in the state that the application gives to its server."""

MAX_BODY_BYTES = 65_536
"""A longer body goes through the ASGI path, which reads it piece by piece."""

WEBSOCKET_PATH = b"/ws/"
WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
SUBPROTOCOLS = re.compile(rb"%b(?:[ \t]*,[ \t]*%b)*" % (_NAME, _NAME))

MAX_QUEUED = 2
"""So many requests may wait behind one that is being served before the connection is no longer read."""

UNUSUAL = frozenset({b"expect", b"origin", b"transfer-encoding", b"upgrade"})
"""A request with one of these headers is not for this door."""


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

    __slots__ = ("_cycle", "caller", "content", "query", "route")

    def __init__(
        self, method: str, headers: dict[bytes, bytes], peer: str | None, route: Route, session_id: str, query: bytes
    ) -> None:
        super().__init__(method, headers, peer, session_id)
        self.route = route
        self.query = query
        self.caller = ANYONE
        self.content = b""
        self._cycle: FastCycle | None = None

    async def body(self, max_bytes: int) -> bytes:
        """See `Request`; MAX_BODY_BYTES is below every bound that can be configured."""
        return self.content

    def when_gone(self, tell: Callable[[], None]) -> Callable[[], object]:
        return self.waiting().when_gone(tell)

    def waiting(self) -> FastCycle:
        """What stands for this request while its answer is not there yet."""
        if self._cycle is None:
            self._cycle = FastCycle()
        return self._cycle


class FastCycle:
    """What uvicorn's protocol class sees of a request that waits for its answer: enough to queue others behind it."""

    __slots__ = ("_tell", "disconnected", "keep_alive", "response_complete", "response_started")

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.response_started = False

    @property
    def message_event(self) -> FastCycle:
        """uvicorn sets this event when the peer has gone."""
        return self

    def set(self) -> None:
        if self.disconnected and self._tell is not None:
            self._tell()

    def when_gone(self, tell: Callable[[], None]) -> Callable[[], None]:
        """See `Request`. The peer may have gone already, while the endpoint waited for something else."""
        self._tell = tell
        self.set()
        return self._forget

    def _forget(self) -> None:
        self._tell = None


class Heads:
    """Heads of answers. The usual one is put together once a second, when uvicorn's date header changes."""

    def __init__(self) -> None:
        self._defaults: Sequence[tuple[bytes, bytes]] | None = None
        self._json = b""

    def json(self, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """That of a JSON answer with status 200, up to its length."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._json = STATUS_LINE[200] + _lines((*defaults, (b"content-type", JSON))) + b"content-length: "
        return self._json

    def any(self, defaults: Sequence[tuple[bytes, bytes]], answer: Answer, length: int, *, close: bool) -> bytes:
        """That of any answer, whole."""
        described = ((b"content-type", answer.content_type), (b"content-length", b"%d" % length))
        end = ((b"connection", b"close"),) if close else ()
        every = (*defaults, *described, (b"cache-control", b"no-store"), *answer.headers, *end)
        return STATUS_LINE[answer.status] + _lines(every) + b"\r\n"


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


class FastDoor(HttpProtocol):
    """Serves what is usual by itself, and leaves the rest to the class below."""

    _heads = Heads()
    _token: bytes | None = None
    _caller = ANYONE
    """The token that this connection has shown last, and whose it is."""
    _request: FastRequest | None = None
    """The request whose body is arriving, if it is for this door."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._door: AsgiDoor = self.app_state[DOOR_KEY]

    # What the parser tells

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
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
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
        self._serve(request)

    def _check_head(self) -> None:
        """Raise HeadersTooLarge, which the parser passes on, if the head is over its bounds."""
        too_many = len(self.headers) > self._peers.max_header_fields
        if too_many or self._quiet_bytes > self._peers.max_header_bytes:
            self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if too_many or self._head_bytes > self._peers.max_header_bytes:
                raise HeadersTooLarge

    def _fall_through(self) -> None:
        """Give the request to the ASGI path, which finds everything as if it had heard the parser itself."""
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
        if (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused:
            return None  # others come first, or the peer does not read its answers
        parser = self.parser
        path, _, query = self.url.partition(b"?")
        method = parser.get_method().decode()
        found = self._door.find(method, path.decode("latin-1"))
        if found is None or b"%" in path or b"#" in self.url or not path.isascii():
            return None
        headers = dict(self.headers)
        if len(headers) != len(self.headers) or not UNUSUAL.isdisjoint(headers):
            return None
        if not _short(method, headers.get(b"content-length")):
            return None
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return None
        request = FastRequest(method, headers, self.client[0] if self.client else None, *found, query)
        try:
            self._admit(request, found[0].access)
        except RelayError:
            return None  # the ASGI path says why, and counts it
        return request if self._door.guard.spend(request.caller) else None

    def _admit(self, request: FastRequest, access: Access) -> None:
        """Ask the guard; a token that this connection has shown before is not looked up again."""
        guard = self._door.guard
        token = request.headers.get(b"authorization")
        if token is not None and token == self._token and guard.readmit(self._caller, request, access):
            request.caller = self._caller
            return
        request.caller = guard.admit(request, access)
        if request.caller.key:  # not where anyone may come in: a token that was not asked for is not a good one
            self._token, self._caller = token, request.caller

    def handle_websocket_upgrade(self) -> None:
        """Let the fast sockets have it, unless there is anything unusual about it."""
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

    # Serving

    def _serve(self, request: FastRequest) -> None:
        """Call the endpoint; answer at once if it need not wait, as most do."""
        try:
            answer = begin(request.route.endpoint(request))
        except Waiting as waiting:
            cycle = request.waiting()
            self._go_on(cycle, self._finish(cycle, waiting.rest))
            return
        except Exception as error:
            answer = self._refusal(error)
        self._answer(answer)

    def _go_on(self, cycle: FastCycle, work: Coroutine[Any, Any, None]) -> None:
        """Do the rest in a task; meanwhile, other requests of this connection wait."""
        self.cycle = cycle  # type: ignore[assignment]
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _finish(self, cycle: FastCycle, answering: Awaitable[Answer]) -> None:
        try:
            answer = await answering
        except ClientGone:
            return
        except Exception as error:
            answer = self._refusal(error)
        if cycle.disconnected or self.transport.is_closing():
            return
        await self._send_in_pieces(answer, cycle)

    def _refusal(self, error: Exception) -> Answer:
        if isinstance(error, RelayError):
            self._door.telemetry.request_refused(error)
            return error_answer(error)
        self._door.telemetry.internal_error(error)
        return INTERNAL_ERROR

    # Answering

    def _answer(self, answer: Answer) -> None:
        """Answer at once, unless that is so long that it must be sent as the peer reads."""
        body = answer.body
        if not isinstance(body, bytes):
            if sum(map(len, body)) > PIECE_BYTES:
                self._go_on(cycle := FastCycle(), self._send_in_pieces(answer, cycle))
                return
            body = b"".join(body)
        self.transport.write(self._head(answer, len(body)) + body)
        self.server_state.total_requests += 1

    async def _send_in_pieces(self, answer: Answer, cycle: FastCycle) -> None:
        parts = [answer.body] if isinstance(answer.body, bytes) else answer.body
        cycle.response_started = True
        head = self._head(answer, sum(map(len, parts)), close=not cycle.keep_alive)
        for piece in pieces([head, *parts]):
            if self.flow.write_paused:
                await self.flow.drain()
            if cycle.disconnected:
                return
            self.transport.write(piece)
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _head(self, answer: Answer, length: int, *, close: bool = False) -> bytes:
        defaults = self.server_state.default_headers
        if answer.status == 200 and answer.content_type is JSON and not answer.headers and not close:
            return b"%b%d\r\ncache-control: no-store\r\n\r\n" % (self._heads.json(defaults), length)
        return self._heads.any(defaults, answer, length, close=close)


def _plain(url: bytes, session_id: bytes) -> bool:
    """Whether the session id stands in the path as it is."""
    return bool(session_id) and url.isascii() and b"/" not in session_id and b"%" not in session_id and b"#" not in url


def _short(method: str, content_length: bytes | None) -> bool:
    """Whether the request has the body that one expects of its method, and that is short."""
    if method != "POST":
        return content_length is None
    return content_length is not None and int(content_length) <= MAX_BODY_BYTES
