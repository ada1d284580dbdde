"""server/protocols.py: what happens before any application is asked; `relay serve` only."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx2 as httpx
import pytest

from tests.protocol.talk import Talk, wait_until
from tests.serving import Server

HANDSHAKE = "Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def exchange(server: Server, request: bytes) -> tuple[int, dict[str, str]]:
    """Send bytes as they are; the status and JSON of the answer."""
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
            connection.sendall(request)
        received = b""
        while True:
            try:
                more = connection.recv(65536)
            except ConnectionResetError:
                break
            received += more
            if not more or (received.endswith(b"}") and b"\r\n\r\n" in received):
                break
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), received
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 65_600 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 1_000_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A" * 1_000_000,
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"x" * 1_000_000,
    ],
    ids=["fields", "long field", "endless field", "endless name", "long path", "endless path"],
)
def test_row_23_a_head_that_is_too_large_is_431(server: Server, request_: bytes) -> None:
    status, body = exchange(server, request_)
    assert (status, body["code"], body["error"]) == (431, "headers_too_large", "Request header fields too large")


def test_an_endless_trailer_is_cut(server: Server) -> None:
    head = b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _ = exchange(server, head + b"2\r\n{}\r\n0\r\nA: " + b"b" * 1_000_000)
    assert status == 431


def test_a_head_within_its_bounds_is_served(server: Server) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 98 + b"B: " + b"b" * 60_000 + b"\r\n\r\n"
    assert exchange(server, request)[0] == 200


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (f"GET /ws/x HTTP/1.1\r\n{HANDSHAKE}Sec-WebSocket-Version: 13\r\n\r\n", 400, "bad_request"),
        (f"GET /ws/x HTTP/1.1\r\n{HANDSHAKE}{KEY}Sec-WebSocket-Version: 12\r\n\r\n", 400, "bad_request"),
        (f"GET /ws/x HTTP/1.1\r\n{HANDSHAKE}{KEY}Content-Length: 2\r\n\r\n{{}}", 400, "upgrade_required"),
        (f"POST /ws/x HTTP/1.1\r\n{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13\r\n\r\n", 405, "method_not_allowed"),
        (f"POST /prompt HTTP/1.1\r\n{HANDSHAKE}Content-Length: 2\r\n\r\n{{}}", 400, "unsupported_content_type"),
        ("nonsense\r\n\r\n", 400, "bad_request"),
    ],
    ids=["no key", "old version", "body", "POST", "POST with a body", "not HTTP"],
)
def test_a_malformed_handshake_is_refused_in_json(server: Server, head: str, status: int, code: str) -> None:
    got, body = exchange(server, head.encode())
    assert (got, body["code"]) == (status, code)


@pytest.mark.parametrize("path", ["/messages/%ff", "/prompts/%ff", "/sessions/a%ff"])
def test_row_11_a_path_that_is_not_utf8_names_no_session(server: Server, path: str) -> None:
    body = b'{"session_id":"\xef\xbf\xbd","prompt":"x"}'
    head = b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    assert exchange(server, head + body)[0] == 200
    assert exchange(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0] == 404
    assert exchange(server, b"GET /messages/%EF%BF%BD HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200
    status, _ = exchange(server, f"GET /ws/%ff HTTP/1.1\r\n{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    assert status == 404


def test_a_frame_that_is_not_utf8_is_closed_with_1007_and_leaves_no_error_in_the_log(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10) as connection:
        connection.sendall(f"GET /ws/x HTTP/1.1\r\n{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13\r\n\r\n".encode())
        assert b" 101 " in connection.recv(65536)
        connection.sendall(b"\x81\x81\x00\x00\x00\x00\xff")
        assert connection.recv(65536)[2:4] == (1007).to_bytes(2, "big")
    assert not [line for line in server.lines if "Traceback" in line or "UTF-8" in line]


def test_a_poll_with_another_request_behind_it_notices_that_the_caller_has_gone(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        talk = Talk(http, "pipelined")
        talk.respond(talk.prompt())
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10) as connection:
            poll = b"GET /prompts/pipelined HTTP/1.1\r\nHost: x\r\n\r\n"
            connection.sendall(poll + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: talk.session()["waiting_agents"] == 1)
        wait_until(lambda: talk.session()["waiting_agents"] == 0)
        assert not [line for line in server.lines if "Traceback" in line]


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        talk = Talk(http, "pipelined-2")
        talk.respond(talk.prompt())
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10) as connection:
            poll = b"GET /prompts/pipelined-2 HTTP/1.1\r\nHost: x\r\n\r\n"
            connection.sendall(poll + b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            wait_until(lambda: talk.session()["waiting_agents"] == 1)
            client_msg_id = talk.prompt()
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        assert received.count(b"HTTP/1.1 200") == 2
        assert received.index(client_msg_id.encode()) < received.index(b'"timestamp"')


def dial(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10)


def test_polls_in_a_row_all_notice_that_the_caller_has_gone(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        talk = Talk(http, "in-a-row")
        talk.respond(talk.prompt())
        with dial(server) as connection:
            poll = "GET /prompts/in-a-row?timeout=%s HTTP/1.1\r\nHost: x\r\n\r\n"
            connection.sendall((poll % 0.1 + poll % 300 + poll % 300).encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            wait_until(lambda: talk.session()["waiting_agents"] == 1)
        wait_until(lambda: talk.session()["waiting_agents"] == 0)


def test_an_upgrade_behind_an_unanswered_request_is_refused(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        talk = Talk(http, "upgrade-behind")
        talk.respond(talk.prompt())
        with dial(server) as connection:
            connection.sendall(b"GET /prompts/upgrade-behind HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: talk.session()["waiting_agents"] == 1)
            connection.sendall(f"GET /ws/x HTTP/1.1\r\n{HANDSHAKE}{KEY}Sec-WebSocket-Version: 13\r\n\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 400")
        wait_until(lambda: talk.session()["waiting_agents"] == 0)


def test_requests_without_end_behind_a_poll_are_refused(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        talk = Talk(http, "without-end")
        talk.respond(talk.prompt())
        with dial(server) as connection:
            connection.sendall(
                b"GET /prompts/without-end HTTP/1.1\r\nHost: x\r\n\r\n"
                + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 500
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 400")
        wait_until(lambda: talk.session()["waiting_agents"] == 0)


def test_a_trailer_is_no_header(server: Server) -> None:
    body = b'{"session_id":"trailer","prompt":"x"}'
    chunks = b"%x\r\n%b\r\n0\r\nContent-Type: application/json\r\n\r\n" % (len(body), body)
    head = b"POST /prompt HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, answer = exchange(server, head + chunks)
    assert (status, answer["code"]) == (400, "unsupported_content_type")


def test_what_follows_an_upgrade_that_is_not_ours_is_not_lost(server: Server) -> None:
    ask = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
    with dial(server) as connection:
        connection.sendall(ask + b"Connection: upgrade\r\nUpgrade: foo\r\n\r\n" + ask + b"Connection: close\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200") == 2
