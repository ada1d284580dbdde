"""Uploads far over the bound: refused while they stream in, and never held in memory."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import httpx2 as httpx
import pytest

from tests.protocol.talk import Talk, assert_error
from tests.serving import Server

BODY_BYTES = 64 * 1024**2
PIECE = b"x" * 1024**2
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
LAST_CHUNK = b"0\r\n\r\n"
MAX_GROWTH_BYTES = 16 * 1024**2

HEAD = b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BY_LENGTH = [HEAD + b"Content-Length: %d\r\n\r\n" % BODY_BYTES, *repeat(PIECE, BODY_BYTES // len(PIECE))]
CHUNKED = [
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    *repeat(CHUNK, BODY_BYTES // len(PIECE)),
    LAST_CHUNK,
]
TOO_LARGE = {
    "error": "Message exceeds size limit",
    "details": "the body is over 1048576 bytes",
    "code": "message_too_large",
}

both_ways = pytest.mark.parametrize("parts", [BY_LENGTH, CHUNKED], ids=["by length", "chunked"])


@pytest.fixture
def talk(server: Server, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """The specification's calls, for a session of this test, which works before and after."""
    with httpx.Client(base_url=server.url, timeout=30) as http:
        talk = Talk(http, request.node.name)
        talk.round_trip()
        yield talk
        talk.round_trip()
        assert talk.messages()["total"] == 4


@contextmanager
def dial(server: Server) -> Iterator[socket.socket]:
    """A bare connection to the server."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """All that the server sends until it hangs up."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def assert_refusal(answer: bytes) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body) == TOO_LARGE


@both_ways
@pytest.mark.usefixtures("talk")
def test_a_64_mb_upload_is_refused_while_it_streams_and_memory_stays_flat(server: Server, parts: list[bytes]) -> None:
    before = most = server.memory_bytes()
    answered_after = None
    with dial(server) as connection:
        for n, part in enumerate(parts):
            connection.sendall(part)
            if answered_after is None and select.select([connection], [], [], 0)[0]:
                answered_after = n
            most = max(most, server.memory_bytes())
        answer = read_to_end(connection)
    assert_refusal(answer)
    assert answered_after is not None
    assert answered_after < len(parts) - 1, "the answer came only after the whole body"
    assert most - before < MAX_GROWTH_BYTES


@both_ways
@pytest.mark.usefixtures("talk")
def test_a_sender_that_stops_at_the_refusal_need_not_send_the_rest(server: Server, parts: list[bytes]) -> None:
    with dial(server) as connection:
        for part in parts[:4]:
            connection.sendall(part)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65_536) or pytest.fail("the server has hung up")
        assert_refusal(answer)


@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
def test_an_ordinary_client_sees_the_refusal(talk: Talk, chunked: bool) -> None:
    """Most clients read only when they have sent everything."""
    body = repeat(PIECE, BODY_BYTES // len(PIECE))
    headers = {"content-type": "application/json"} | ({} if chunked else {"content-length": str(BODY_BYTES)})
    answer = talk.http.post("/prompt", content=body, headers=headers)
    assert_error(answer, 400, "message_too_large", TOO_LARGE["error"], TOO_LARGE["details"])
