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


async def connected(reply: Reply, *, requests: int = 1) -> tuple[Wire, HttpToolsProtocol, asyncio.Event]:
    """A connection of plain uvicorn to an application that answers this; and when it has answered so many."""
    done = asyncio.Event()
    answered = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        await send_answer(reply, send)
        answered += 1
        if answered == requests:
            done.set()

    config = Config(app, proxy_headers=False, access_log=False, lifespan="off")
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {})
    wire = Wire()
    protocol.connection_made(wire)
    return wire, protocol, done


def a_request(*headers: bytes) -> bytes:
    return b"\r\n".join([b"GET / HTTP/1.1", b"host: x", *headers, b"", b""])


async def asked(reply: Reply, *headers: bytes) -> tuple[Wire, HttpToolsProtocol]:
    """The connection when one request was answered."""
    wire, protocol, done = await connected(reply)
    protocol.data_received(a_request(*headers))
    await done.wait()
    return wire, protocol


@pytest.mark.parametrize("reply", [b'{"ok":true}', Answer(404, b"{}"), Answer(204, b"")])
async def test_a_short_answer_is_one_write(reply: Reply) -> None:
    wire, protocol = await asked(reply)
    body = reply if isinstance(reply, bytes) else reply.body
    assert isinstance(body, bytes)
    [written] = wire.writes
    assert written.startswith(b"HTTP/1.1 ")
    assert written.endswith(b"\r\n\r\n" + body)
    assert protocol.cycle.response_complete
    assert protocol.cycle.transport is wire


async def test_a_long_answer_is_written_piece_by_piece() -> None:
    wire, _ = await asked(LONG)
    assert len(wire.writes) > 3
    assert len(b"".join(wire.writes)) > 3 * PIECE_BYTES


async def test_a_connection_is_closed_behind_its_last_answer() -> None:
    wire, _ = await asked(b"{}", b"connection: close")
    assert wire.closed_after == 1
    assert wire.writes[0].endswith(b"\r\n\r\n{}")


async def test_requests_in_one_piece_are_answered_one_after_the_other() -> None:
    wire, protocol, done = await connected(b"{}", requests=3)
    protocol.data_received(a_request() * 3)
    await done.wait()
    assert [written.endswith(b"\r\n\r\n{}") for written in wire.writes] == [True] * 3


async def test_an_answer_that_has_to_wait_is_given_to_uvicorn_as_it_is() -> None:
    wire, protocol, done = await connected(b"{}")
    protocol.pause_writing()
    protocol.data_received(a_request())
    await asyncio.sleep(0)
    assert (wire.writes, protocol.cycle.transport) == ([], wire)
    protocol.resume_writing()
    await done.wait()
    assert b"".join(wire.writes).endswith(b"\r\n\r\n{}")


async def test_nothing_is_written_for_a_peer_that_has_gone() -> None:
    wire, protocol, done = await connected(b"{}")
    protocol.data_received(a_request())
    protocol.cycle.disconnected = True
    await done.wait()
    assert (wire.writes, protocol.cycle.transport) == ([], wire)


async def test_an_error_leaves_the_connection_to_uvicorn() -> None:
    wire, protocol = await asked(b"{}")
    cycle: Any = protocol.cycle
    cycle.response_started = cycle.response_complete = False
    cycle.chunked_encoding = None
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        await send_answer(Answer(200, b"{}", headers=((b"bad name", b""),)), cycle.send)
    assert cycle.transport is wire
    assert len(wire.writes) == 1


async def test_the_send_of_anybody_else_is_given_the_messages_as_they_are() -> None:
    sent: list[Message] = []

    class Middleware(RequestResponseCycle):
        def __init__(self) -> None:
            """Without a connection."""

        async def send(self, message: Any) -> None:
            sent.append(message)

    await send_answer(b"{}", Middleware().send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
