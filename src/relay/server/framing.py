"""WebSocket frames (RFC 6455) without any I/O: bytes to messages, and messages to bytes. No extensions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from websockets.exceptions import ProtocolError
from websockets.frames import Close
from websockets.speedups import apply_mask

MAX_CONTROL_BYTES = 125
CLOSE_PROTOCOL_ERROR = 1002
CLOSE_NOT_UTF8 = 1007
CLOSE_TOO_BIG = 1009
CLOSE_NO_CODE = 1005


class Opcode(IntEnum):
    """What a frame, or a message, is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES = frozenset(Opcode)


class FrameError(Exception):
    """The peer does not keep to the protocol; the connection must be closed with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


_head_16 = struct.Struct("!BBH").pack
_head_64 = struct.Struct("!BBQ").pack


def frame(opcode: int, payload: bytes) -> bytes:
    """A whole, unmasked frame, as a server sends it."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 65_536:
        return _head_16(0x80 | opcode, 126, size) + payload
    return _head_64(0x80 | opcode, 127, size) + payload


def close_frame(code: int, reason: str) -> bytes:
    """A close frame; the codes that stand for "none" have no payload."""
    payload = b"" if code == CLOSE_NO_CODE else struct.pack("!H", code) + reason.encode()[: MAX_CONTROL_BYTES - 2]
    return frame(Opcode.CLOSE, payload)


def read_close(payload: bytes) -> int:
    """The code in a close frame. Raises FrameError."""
    try:
        close = Close.parse(payload)
        close.check() if payload else None
    except ProtocolError as error:
        raise FrameError(CLOSE_PROTOCOL_ERROR, str(error)) from None
    except UnicodeDecodeError:
        raise FrameError(CLOSE_NOT_UTF8, "the reason is not UTF-8") from None
    return int(close.code)


class FrameReader:
    """Takes bytes as they come and gives messages: whole texts and binaries, and control frames in between."""

    __slots__ = ("_at", "_buffer", "_kind", "_max_bytes", "_message")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = b""
        self._at = 0
        """How far the buffer has been read: a frame at a time, without copying the rest for each."""
        self._kind: Opcode | None = None
        """What the message is of which fragments have come."""
        self._message = b""

    def read(self, data: bytes) -> Iterator[tuple[Opcode, bytes] | None]:
        """For each frame that is complete with this data: the message that it completes, if any. Raises FrameError."""
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        while (found := self._next_frame()) is not None:
            final, opcode, payload = found
            if opcode is Opcode.CLOSE and self._kind is not None:
                raise FrameError(CLOSE_PROTOCOL_ERROR, "closed in the middle of a message")
            yield (opcode, payload) if opcode >= Opcode.CLOSE else self._join(final, opcode, payload)
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0

    def _next_frame(self) -> tuple[bool, Opcode, bytes] | None:
        """Take one frame from the buffer; None if it is not complete."""
        buffer, at = self._buffer, self._at
        if len(buffer) < at + 2:
            return None
        first, second = buffer[at], buffer[at + 1]
        opcode, size = self._check_head(first, second)
        start = at + 2
        if size >= 126:
            start = at + (4 if size == 126 else 10)
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[at + 2 : start], "big")
        if opcode < Opcode.CLOSE and len(self._message) + size > self._max_bytes:
            raise FrameError(CLOSE_TOO_BIG, "message too big")
        end = start + 4 + size
        if len(buffer) < end:
            return None
        payload = apply_mask(buffer[start + 4 : end], buffer[start : start + 4]) if size else b""
        self._at = end
        return bool(first & 0x80), opcode, payload

    def _check_head(self, first: int, second: int) -> tuple[Opcode, int]:
        """What the first two bytes say: opcode and length, or how the length is given. Raises FrameError."""
        code, size = first & 0x0F, second & 0x7F
        if first & 0x70:
            raise FrameError(CLOSE_PROTOCOL_ERROR, "reserved bits are set")
        if code not in _OPCODES:
            raise FrameError(CLOSE_PROTOCOL_ERROR, "reserved opcode")
        if not second & 0x80:
            raise FrameError(CLOSE_PROTOCOL_ERROR, "a client's frame must be masked")
        if code >= Opcode.CLOSE and (size > MAX_CONTROL_BYTES or not first & 0x80):
            raise FrameError(CLOSE_PROTOCOL_ERROR, "a control frame is short and whole")
        return Opcode(code), size

    def _join(self, final: bool, opcode: Opcode, payload: bytes) -> tuple[Opcode, bytes] | None:
        """Put a message together; None if there is more to come."""
        if (opcode is Opcode.CONTINUATION) is (self._kind is None):
            raise FrameError(CLOSE_PROTOCOL_ERROR, "a fragment out of place")
        if self._kind is None:
            self._kind = opcode
        self._message = self._message + payload if self._message else payload
        if not final:
            return None
        kind, message = self._kind, self._message
        self._kind, self._message = None, b""
        return kind, message
