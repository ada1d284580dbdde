"""WebSocket frames made and read by hand: a client that can say what no library would."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass

import httpx2 as httpx

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x11\x22\x33\x44"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The key of RFC 6455's own example, and the answer to it."""

HANDSHAKE = {
    "Host": "127.0.0.1",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length_bytes: int | None = None,
    claims: int | None = None,
) -> bytes:
    """A frame, right or wrong. `claims` is the length that it says it has, in so many bytes as `length_bytes` says."""
    length = len(payload) if claims is None else claims
    if length_bytes is None:
        length_bytes = 0 if length < 126 else 2 if length < 65_536 else 8
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = 0x80 if masked else 0
    if length_bytes == 0:
        head += bytes([bit | length])
    elif length_bytes == 2:
        head += struct.pack("!BH", bit | 126, length)
    else:
        head += struct.pack("!BQ", bit | 127, length)
    return head + (MASK + mask(payload) if masked else payload)


def mask(payload: bytes) -> bytes:
    """The payload as a client must send it."""
    return bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))


def close(code: int, reason: bytes = b"") -> bytes:
    """A close frame."""
    return frame(CLOSE, struct.pack("!H", code) + reason)


@dataclass(frozen=True)
class Received:
    """A frame from the server."""

    opcode: int
    payload: bytes


class RawClient:
    """A TCP connection on which WebSocket is spoken by hand."""

    def __init__(self, url: str) -> None:
        address = httpx.URL(url)
        self._socket = socket.create_connection((address.host, address.port or 80), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def hang_up(self) -> None:
        """Close the connection, without a word."""
        self._socket.close()

    def send(self, *frames: bytes) -> None:
        """All of it in one packet, as far as that is ours to say."""
        self._socket.sendall(b"".join(frames))

    def request(self, path: str, headers: dict[str, str] | list[tuple[str, str]]) -> None:
        """Ask for a page, or for a WebSocket."""
        pairs = headers.items() if isinstance(headers, dict) else headers
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def response(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer."""
        while b"\r\n\r\n" not in self._received:
            self._read_more()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def open(self, path: str) -> None:
        """A handshake that succeeds."""
        self.request(path, HANDSHAKE)
        status, headers = self.response()
        assert (status, headers["sec-websocket-accept"]) == (101, ACCEPT)

    def read(self) -> Received:
        """The next frame; the server's are whole, not masked, and without reserved bits."""
        first, second = self._take(2)
        assert first & 0xF0 == 0x80
        assert second < 128
        length = second
        if second == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif second == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        return Received(first & 0x0F, self._take(length))

    def closed(self) -> int | None:
        """The code of the close frame that comes next and is the last; None if it has no code."""
        received = self.read()
        assert received.opcode == CLOSE, received
        with contextlib.suppress(ConnectionError):  # it waits for our close only if it was its application that closed
            self.send(frame(CLOSE, received.payload))
        self.ended()
        return struct.unpack("!H", received.payload[:2])[0] if received.payload else None

    def ended(self) -> None:
        """The server has hung up, and had nothing left to say."""
        with contextlib.suppress(ConnectionResetError):  # it hung up on bytes that it had not read
            self._received += self._socket.recv(65_536)
        assert self._received == b""

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._read_more()
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def _read_more(self) -> None:
        more = self._socket.recv(65_536)
        assert more, f"the server has hung up after {self._received!r}"
        self._received += more
