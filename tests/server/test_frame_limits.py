"""What one WebSocket client may say: how often, how much, how tightly packed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.protocol.talk import Talk, closed, next_frame
from tests.serving import DOORS, Server, running

HANDSHAKE = (
    "GET /ws/{} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n"
)
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
PING = b"\x89\x80\x00\x00\x00\x00"
BURST = 100
"""Five seconds' worth of the default."""


@pytest.fixture(scope="module", params=DOORS)
def strict(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A relay that lets clients say little, through each door."""
    with running(request.param, max_frames_per_second=10, max_frame_bytes=200) as server:
        yield server


@pytest.fixture(scope="module")
def compressing() -> Iterator[Server]:
    """A relay that agrees to compression."""
    with running(ws_compression="true") as server:
        yield server


@contextlib.contextmanager
def raw(server: Server, session_id: str = "raw", more: str = "") -> Iterator[tuple[socket.socket, bytes]]:
    """A socket after the handshake, and the head of the answer."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        connection.sendall(HANDSHAKE.format(session_id, more).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        yield connection, head


def frame(opcode: int, payload: bytes, *, fin: bool = True, compressed: bool = False) -> bytes:
    """A masked frame, with a mask that changes nothing."""
    head = bytes([opcode | (0x80 if fin else 0) | (0x40 if compressed else 0)])
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big") if size < 65_536 else b""
    return head + (length or b"\xff" + size.to_bytes(8, "big")) + bytes(4) + payload


def close_frame(connection: socket.socket) -> tuple[int, str]:
    """The code and reason of the close frame that ends what the server sends; pongs and pings may come before."""
    received = b"".join(iter(lambda: connection.recv(65_536), b""))
    while received and received[0] != 0x88:
        received = received[2 + received[1] :]
    assert received, "the connection broke without a close frame"
    return int.from_bytes(received[2:4], "big"), received[4:].decode()


def read_until(connection: socket.socket, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        received += connection.recv(65_536) or pytest.fail(f"the server has hung up after {received!r}")


def listen(server: Server, session_id: str = "s1") -> ClientConnection:
    return connect(f"{server.ws_url}/ws/{session_id}", compression=None)


def test_frames_have_a_rate(strict: Server) -> None:
    with listen(strict) as client:
        for _ in range(50):
            client.send('{"type":"ping"}')
        for _ in range(50):
            assert next_frame(client)["type"] == "pong"
        with contextlib.suppress(ConnectionClosed):
            for _ in range(60):  # one too many, however fast the allowance fills meanwhile
                client.send('{"type":"pong"}')
        assert closed(client) == (1008, "too many messages")
    strict.wait_for_line('client_disconnected.*"close_code":1008')
    with httpx.Client(base_url=strict.url) as http, listen(strict) as again:
        Talk(http, "s1").round_trip(again)
        assert 'relay_disconnects_total{code="1008"} 1.0' in http.get("/metrics").text


@pytest.mark.parametrize(
    ("first", "more"),
    [(b"", PING), (b"", frame(0xA, b"")), (frame(1, b"x", fin=False), frame(0, b"", fin=False))],
    ids=["pings", "pongs", "continuations"],
)
def test_frames_that_no_application_sees_count_too(server: Server, first: bytes, more: bytes) -> None:
    with raw(server) as (connection, _):
        last = frame(9, b"last")
        connection.sendall(first + more * (BURST - bool(first) - 1) + last)
        read_until(connection, b"last")
        connection.sendall(more * 50)
        assert close_frame(connection) == (1008, "too many messages")


def test_the_frame_size_is_a_setting(strict: Server) -> None:
    with listen(strict) as client:
        client.send('{"type":"ping"}'.ljust(200))
        assert next_frame(client)["type"] == "pong"
        client.send('{"type":"ping"}'.ljust(201))
        assert closed(client)[0] == 1009
    with httpx.Client(base_url=strict.url) as http, listen(strict) as client:
        Talk(http, "s1").round_trip(client)


def test_a_message_in_many_pieces_is_one_message(server: Server) -> None:
    with raw(server) as (connection, _):
        text = b'{"type":"ping"}'
        connection.sendall(b"".join(frame(0 if n else 1, text[n : n + 1], fin=False) for n in range(len(text))))
        connection.sendall(frame(0, b""))
        assert b'"type":"pong"' in connection.recv(65_536)


@pytest.mark.parametrize("per_second", [20, 1_000_000], ids=["default rate", "no rate to speak of"])
def test_a_flood_of_pings_holds_up_nobody(per_second: int) -> None:
    """256 KiB of pings come in one read. The loop has others to serve in between."""
    with running(max_frames_per_second=per_second) as server:
        stop = threading.Event()
        flood = threading.Thread(target=keep_flooding, args=(server, stop))
        with httpx.Client(base_url=server.url) as http, listen(server) as client:
            talk = Talk(http, "s1")
            talk.round_trip(client)
            flood.start()
            try:
                times = []
                for _ in range(50):
                    began = time.monotonic()
                    talk.round_trip(client)  # four requests and a frame
                    times.append(time.monotonic() - began)
            finally:
                stop.set()
                flood.join()
        assert sorted(times)[47] < 0.5


def keep_flooding(server: Server, stop: threading.Event) -> None:
    pings = PING * (256 * 1024 // len(PING))
    while not stop.is_set():
        with contextlib.suppress(OSError), raw(server, "flood") as (connection, _):
            connection.settimeout(0.05)
            while not stop.is_set():
                connection.sendall(pings)


# Compression


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, wbits=-12)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def test_compression_is_off_by_default(server: Server) -> None:
    with raw(server, more=DEFLATE) as (connection, head):
        assert b"permessage-deflate" not in head.lower()
        connection.sendall(frame(1, deflated(b"x"), compressed=True))
        assert close_frame(connection)[0] == 1002


def test_compression_is_on_if_so_configured_and_its_memory_bounded(compressing: Server) -> None:
    with raw(compressing, more=DEFLATE) as (_, head):
        assert b"server_max_window_bits=12" in head.lower()
        assert b"client_max_window_bits=12" in head.lower()
    with httpx.Client(base_url=compressing.url) as http, connect(f"{compressing.ws_url}/ws/s1") as client:
        assert [extension.name for extension in client.protocol.extensions] == ["permessage-deflate"]
        Talk(http, "s1").round_trip(client)
        client.send(json.dumps({"type": "ping", "x": "x" * 60_000}))
        assert next_frame(client)["type"] == "pong"


def test_who_sends_on_while_the_close_frame_comes_is_not_reset(compressing: Server) -> None:
    with raw(compressing, more=DEFLATE) as (connection, _), httpx.Client(base_url=compressing.url) as http:
        connection.sendall(frame(1, bytes(65_537)))
        assert close_frame(connection)[0] == 1009
        for _ in range(3):
            http.get("/livez")  # the server has had a turn, in which it could have hung up
            connection.sendall(b"x")


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (frame(1, b"\xff") + PING, 1007),
        (frame(1, b"\xff") + frame(1, b"{}"), 1007),
        (PING * 150, 1008),
        (PING * 150 + frame(8, b"\x03\xe8"), 1000),
    ],
    ids=["bad text, then a ping", "bad text, then another", "a flood", "a flood, then a close"],
)
def test_what_comes_with_a_fault_changes_nothing(compressing: Server, packet: bytes, code: int) -> None:
    before = len(compressing.lines)
    with raw(compressing, more=DEFLATE) as (connection, _):
        connection.sendall(packet)
        assert close_frame(connection)[0] == code
    compressing.wait_for_line(f'client_disconnected.*"close_code":{code}')
    assert not [line for line in compressing.lines[before:] if "Traceback" in line or "Fatal" in line]


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_deflate_bomb_is_not_inflated(compressing: Server, fragments: int) -> None:
    bomb = deflated(bytes(60 * 1024**2))
    assert len(bomb) < 65_536
    half = len(bomb) // fragments
    frames = frame(1, bomb[:half], fin=fragments == 1, compressed=True) + frame(0, bomb[half:]) * (fragments - 1)
    before = most = compressing.memory_bytes()
    for _ in range(20):
        with raw(compressing, more=DEFLATE) as (connection, _):
            connection.sendall(frames)
            assert close_frame(connection)[0] == 1009
            most = max(most, compressing.memory_bytes())
    assert most - before < 10 * 1024**2
