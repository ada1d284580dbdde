"""What no HTTP client would send: written to the bare socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from tests.protocol.bad_input.conftest import unharmed
from tests.protocol.talk import Address, Talk


@contextmanager
def dial(at: Address) -> Iterator[socket.socket]:
    """A bare connection to the server."""
    address = httpx.URL(at.url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        yield connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """What the server sends, up to these bytes."""
    received = b""
    while not received.endswith(end):
        received += connection.recv(65_536) or pytest.fail(f"the server has hung up after {received!r}")
    return received


def read_to_end(connection: socket.socket) -> bytes:
    """All that the server sends until it hangs up."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


MALFORMED = {
    "words": b"hello server\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "zeros": bytes(1024),
    "unknown version": b"GET /healthz HTTP/9.9\r\n\r\n",
    "unknown method": b"BREW /prompt HTTP/1.1\r\nHost: x\r\n\r\n",
    "space in a header's name": b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
    "header without a colon": b"GET /healthz HTTP/1.1\r\nHost\r\n\r\n",
    "bare byte in the path": b"GET /messages/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "bare byte in the query": b"GET /messages/a?limit=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "length in words": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n",
    "negative length": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "length with a sign": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
    "length of 30 digits": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
    "two lengths": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "length and chunks": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk without a size": b"POST /prompt HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
def test_malformed_http_gets_400_and_the_server_goes_on(talk: Talk, at: Address, request_bytes: bytes) -> None:
    with unharmed(talk):
        with dial(at) as connection:
            connection.sendall(request_bytes)
            assert read_to_end(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert talk.http.get("/healthz").status_code == 200


def test_malformed_http_behind_a_good_request_spoils_only_itself(talk: Talk, at: Address) -> None:
    with unharmed(talk), dial(at) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 200 OK\r\n")
        connection.sendall(b"nonsense\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def _post(at: Address, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST /prompt HTTP/1.1", b"Host: x", b"Content-Type: application/json", *headers)
    return b"\r\n".join(lines) + b"\r\n" + at.header_lines + b"\r\n" + body


def _unfinished(at: Address, session_id: str) -> dict[str, bytes]:
    """Requests whose body is complete JSON as far as it came, but of which more was promised."""
    prompt = json.dumps({"session_id": session_id, "prompt": "Hello"}).encode()
    return {
        "headers only": _post(at, b"", b"Content-Length: 500"),
        "half the headers": _post(at, b"")[:-4],
        "half the length": _post(at, prompt, b"Content-Length: 500"),
        "one byte short": _post(at, prompt, b"Content-Length: %d" % (len(prompt) + 1)),
        "no last chunk": _post(at, b"%x\r\n%b\r\n" % (len(prompt), prompt), b"Transfer-Encoding: chunked"),
        "half a chunk": _post(at, b"500\r\n" + prompt, b"Transfer-Encoding: chunked"),
    }


@pytest.mark.parametrize("half_closed", [True, False], ids=["half-closed", "reset"])
@pytest.mark.parametrize("how", list(_unfinished(Address(""), "")))
def test_a_body_that_is_cut_off_stores_nothing(talk: Talk, at: Address, how: str, half_closed: bool) -> None:
    with unharmed(talk), dial(at) as connection:
        connection.sendall(_unfinished(at, talk.session_id)[how])
        if half_closed:
            connection.shutdown(socket.SHUT_WR)
            assert read_to_end(connection) == b""  # so that the server has seen the end
        else:
            talk.http.get("/healthz").raise_for_status()  # so that the server has begun to read
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


@pytest.mark.parametrize("expect", [(), (b"Expect: 100-continue",)], ids=["", "100-continue"])
def test_a_length_over_1_mib_is_refused_before_any_of_it_is_sent(
    talk: Talk, at: Address, expect: tuple[bytes, ...]
) -> None:
    with unharmed(talk), dial(at) as connection:
        connection.sendall(_post(at, b"", b"Content-Length: 1048577", *expect))
        connection.shutdown(socket.SHUT_WR)
        head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"\r\nconnection: close" in head.lower()
        assert json.loads(body) == {
            "error": "Message exceeds size limit",
            "details": "the body is over 1048576 bytes",
            "code": "message_too_large",
        }
