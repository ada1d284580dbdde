"""server/onewrite.py: what uvicorn's own connection is given to write, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from relay.server.asgi import send_answer
from relay.server.http import PIECE_BYTES, Answer, Reply, in_parts

LONG = in_parts([b"x" * PIECE_BYTES] * 3)


class Wire(asyncio.Transport):
    """Notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed_after: int | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        assert self.closed_after is None
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed_after = len(self.writes)

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def is_reading(self) -> bool:
        return True

    def resume_reading(self) -> None:
        """It was never paused."""

    def pause_reading(self) -> None:
        """Nothing more comes."""


DEFAULTS = [(b"date", b"Wed, 18 Nov 2026 12:00:00 GMT"), (b"server", b"uvicorn")]


class Connection:
    """A connection of plain uvicorn to an application that answers this, `as_messages` or as the ASGI door does."""

    def __init__(self, reply: Reply, *, as_messages: bool = False, access_log: bool = False) -> None:
        self._reply = reply
        self._as_messages = as_messages
        config = Config(self._app, proxy_headers=False, access_log=access_log, lifespan="off", interface="asgi3")
        config.load()
        state = ServerState()
        state.default_headers = DEFAULTS
        self.protocol = HttpToolsProtocol(config, state, {})
        self.wire = Wire()
        self.protocol.connection_made(self.wire)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        if scope["method"] == "GET":
            await receive()
        await send_answer(self._reply, wrapped if self._as_messages else send)

    async def ask(self, request: bytes) -> list[bytes]:
        """What is written until the application has done its work."""
        self.protocol.data_received(request)
        await self.end()
        return self.wire.writes

    async def end(self) -> None:
        """All requests of the moment are answered."""
        while self.protocol.tasks:
            await asyncio.wait(self.protocol.tasks)


def a_request(*headers: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"%b / HTTP/%b" % (method, version), b"host: x", *headers, b"", b""])


SHORT = (b'{"ok":true}', Answer(404, b"{}", headers=((b"retry-after", b"1"),)))


@pytest.mark.parametrize("reply", [*SHORT, Answer(204, b""), LONG], ids=["usual", "error", "no-content", "long"])
@pytest.mark.parametrize("access_log", [False, True], ids=["no-log", "log"])
@pytest.mark.parametrize(
    "request_",
    [
        a_request(),
        a_request() * 3,
        a_request(b"connection: close"),
        a_request(version=b"1.0"),
        a_request(method=b"HEAD"),
        a_request(b"content-length: 2", b"expect: 100-continue", method=b"POST") + b"{}",
    ],
    ids=["plain", "pipelined", "close", "http-1.0", "head", "expect"],
)
async def test_uvicorn_would_have_written_the_same(reply: Reply, request_: bytes, *, access_log: bool) -> None:
    ours, uvicorns = (Connection(reply, as_messages=each, access_log=access_log) for each in (False, True))
    assert b"".join(await ours.ask(request_)) == b"".join(await uvicorns.ask(request_))
    assert ours.wire.is_closing() == uvicorns.wire.is_closing()
    assert state_of(ours) == state_of(uvicorns)


def state_of(connection: Connection) -> list[bool]:
    """What uvicorn knows of the last request."""
    cycle = connection.protocol.cycle
    names = ("response_started", "response_complete", "waiting_for_100_continue", "keep_alive")
    return [*(getattr(cycle, name) for name in names), cycle.message_event.is_set()]


async def test_each_request_has_its_line_in_uvicorns_log_if_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    await Connection(b"{}", access_log=True).ask(a_request() * 2)
    assert capsys.readouterr().out.count('"GET / HTTP/1.1" 200') == 2


@pytest.mark.parametrize("reply", SHORT)
async def test_a_short_answer_is_one_write(reply: Reply) -> None:
    [written] = await Connection(reply).ask(a_request())
    assert written.startswith(b"HTTP/1.1 ")


async def test_a_long_answer_is_written_piece_by_piece() -> None:
    writes = await Connection(LONG).ask(a_request())
    assert len(writes) > 3
    assert len(b"".join(writes)) > 3 * PIECE_BYTES


async def test_requests_in_one_piece_are_answered_one_after_the_other() -> None:
    assert len(await Connection(b"{}").ask(a_request() * 3)) == 3


async def test_an_answer_that_has_to_wait_is_given_to_uvicorn_as_it_is() -> None:
    connection = Connection(b"{}")
    connection.protocol.pause_writing()
    connection.protocol.data_received(a_request())
    await asyncio.sleep(0)
    assert connection.wire.writes == []
    connection.protocol.resume_writing()
    await connection.end()
    assert b"".join(connection.wire.writes).endswith(b"\r\n\r\n{}")


async def test_nothing_is_written_for_a_peer_that_has_gone() -> None:
    connection = Connection(b"{}")
    connection.protocol.data_received(a_request())
    connection.protocol.cycle.disconnected = True
    await connection.end()
    assert connection.wire.writes == []


async def test_the_send_of_anybody_else_is_given_the_messages_as_they_are() -> None:
    sent: list[Message] = []

    class Middleware(RequestResponseCycle):
        def __init__(self) -> None:
            """Without a connection."""

        async def send(self, message: Any) -> None:
            sent.append(message)

    await send_answer(b"{}", Middleware().send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
