"""How messages are cut into frames, and frames into packets: RFC 6455, section 5."""

from __future__ import annotations

import json

import pytest

from tests.protocol.websocket.conftest import Watched
from tests.protocol.websocket.frames import BINARY, CONT, PING, PONG, TEXT, RawClient, Received, frame

MESSAGE = b'{"type":"ping","x":"\xc3\xa9"}'
MAX_MESSAGE_BYTES = 65_536
RESERVED_OPCODES = [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]


def assert_pong(client: RawClient) -> None:
    """The message arrived whole: it was a ping in JSON, and gets its answer."""
    received = client.read()
    assert received.opcode == TEXT
    assert json.loads(received.payload)["type"] == "pong"


def cut(message: bytes, *at: int) -> list[bytes]:
    """The message in fragments, cut at these places."""
    ends = [*at, len(message)]
    pieces = [message[start:end] for start, end in zip([0, *at], ends, strict=True)]
    return [
        frame(TEXT if index == 0 else CONT, piece, fin=index == len(pieces) - 1) for index, piece in enumerate(pieces)
    ]


# Right


@pytest.mark.parametrize(
    "frames",
    [
        cut(MESSAGE),
        cut(MESSAGE, 5),
        cut(MESSAGE, 21),
        cut(MESSAGE, *range(1, len(MESSAGE))),
        cut(MESSAGE, 0),
        cut(MESSAGE, 5, 5, 5),
        cut(MESSAGE, len(MESSAGE)),
    ],
    ids=[
        "whole",
        "two",
        "within a character",
        "one byte each",
        "empty first",
        "empty in the middle",
        "empty last",
    ],
)
def test_fragments_make_one_message(relay: Watched, frames: list[bytes]) -> None:
    with relay.client() as client:
        client.send(*frames)
        assert_pong(client)


def test_a_frame_that_comes_byte_by_byte_is_read(relay: Watched) -> None:
    with relay.client() as client:
        for byte in frame(TEXT, MESSAGE):
            client.send(bytes([byte]))
        assert_pong(client)


def test_several_messages_in_one_packet_are_each_answered(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, MESSAGE), *cut(MESSAGE, 3), frame(BINARY, MESSAGE))
        assert_pong(client)
        assert_pong(client)
        assert json.loads(client.read().payload)["details"] == "a message must be text, not binary"


def test_a_ping_between_fragments_is_answered_at_once(relay: Watched) -> None:
    first, last = cut(MESSAGE, 7)
    with relay.client() as client:
        client.send(first, frame(PING, b"are you there"))
        assert client.read() == Received(PONG, b"are you there")
        client.send(frame(PONG, b"unasked"), last)
        assert_pong(client)


@pytest.mark.parametrize("length_bytes", [2, 8])
def test_a_length_in_more_bytes_than_needed_is_read(relay: Watched, length_bytes: int) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, MESSAGE, length_bytes=length_bytes))
        assert_pong(client)


def _long(size: int) -> bytes:
    return b'{"type":"ping","x":"%b"}' % (b"x" * (size - 22))


@pytest.mark.parametrize("frames", [cut(_long(MAX_MESSAGE_BYTES)), cut(_long(MAX_MESSAGE_BYTES), 1, 30_000, 65_535)])
def test_a_message_of_65536_bytes_is_read(relay: Watched, frames: list[bytes]) -> None:
    with relay.client() as client:
        client.send(*frames)
        assert_pong(client)


# Wrong


@pytest.mark.parametrize(
    "frames",
    [
        cut(_long(MAX_MESSAGE_BYTES + 1)),
        cut(_long(MAX_MESSAGE_BYTES + 1), 65_536),
        cut(_long(MAX_MESSAGE_BYTES + 1), 1, 30_000),
        cut(_long(200_000), *range(10_000, 200_000, 10_000)),
        [frame(BINARY, bytes(MAX_MESSAGE_BYTES + 1))],
    ],
    ids=["one frame", "two", "three", "twenty", "binary"],
)
def test_a_message_over_65536_bytes_is_1009(relay: Watched, frames: list[bytes]) -> None:
    with relay.client() as client:
        client.send(*frames)
        assert client.closed() == 1009


@pytest.mark.not_by_uvicorn("unless --ws-max-size says less, it waits for up to 16 MiB", run=False)
@pytest.mark.parametrize("claims", [MAX_MESSAGE_BYTES + 1, 2**24])
def test_a_length_over_65536_is_refused_before_its_bytes_come(relay: Watched, claims: int) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, claims=claims, length_bytes=8))
        assert client.closed() == 1009


@pytest.mark.parametrize("claims", [2**24 + 1, 2**31, 2**32, 2**63 - 1])
def test_an_absurd_length_is_refused_before_its_bytes_come(relay: Watched, claims: int) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, claims=claims, length_bytes=8))
        assert client.closed() == 1009


@pytest.mark.parametrize("claims", [2**63, 2**64 - 1])
def test_a_length_with_its_highest_bit_set_is_refused(relay: Watched, claims: int) -> None:
    """RFC 6455 forbids that bit; here it is only one more length that is far too much."""
    with relay.client() as client:
        client.send(frame(TEXT, claims=claims, length_bytes=8))
        assert client.closed() == 1009


@pytest.mark.parametrize("opcode", [TEXT, BINARY, PING, PONG, CONT])
def test_a_frame_that_is_not_masked_is_1002(relay: Watched, opcode: int) -> None:
    with relay.client() as client:
        client.send(frame(opcode, b"x", masked=False))
        assert client.closed() == 1002


@pytest.mark.parametrize("rsv", [4, 2, 1, 7], ids=["RSV1", "RSV2", "RSV3", "all"])
@pytest.mark.parametrize("opcode", [TEXT, PING])
def test_a_reserved_bit_is_1002(relay: Watched, opcode: int, rsv: int) -> None:
    with relay.client() as client:
        client.send(frame(opcode, MESSAGE, rsv=rsv))
        assert client.closed() == 1002


@pytest.mark.parametrize("opcode", RESERVED_OPCODES)
@pytest.mark.parametrize("payload", [b"", b"x"], ids=["empty", "one byte"])
def test_a_reserved_opcode_is_1002(relay: Watched, opcode: int, payload: bytes) -> None:
    with relay.client() as client:
        client.send(frame(opcode, payload))
        assert client.closed() == 1002


@pytest.mark.parametrize("fin", [True, False], ids=["last", "more to come"])
def test_a_continuation_of_nothing_is_1002(relay: Watched, fin: bool) -> None:
    with relay.client() as client:
        client.send(frame(CONT, MESSAGE, fin=fin))
        assert client.closed() == 1002


def test_a_continuation_of_a_message_that_was_whole_is_1002(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, MESSAGE))
        assert_pong(client)
        client.send(frame(CONT, b"x"))
        assert client.closed() == 1002


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("fin", [True, False], ids=["whole", "fragment"])
def test_a_new_message_within_a_fragmented_one_is_1002(relay: Watched, opcode: int, fin: bool) -> None:
    with relay.client() as client:
        client.send(cut(MESSAGE, 7)[0], frame(opcode, MESSAGE, fin=fin))
        assert client.closed() == 1002


# Text


NOT_UTF8 = {
    "lone byte": b"\xff",
    "continuation byte alone": b"\x80",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80",
    "cut short": b"\xe2\x82",
    "cut short after a good start": b"caf\xc3",
}


@pytest.mark.parametrize("payload", NOT_UTF8.values(), ids=NOT_UTF8)
@pytest.mark.parametrize("places", [(), (1,), (0, 1)], ids=["whole", "two fragments", "three fragments"])
def test_text_that_is_not_utf8_is_1007(relay: Watched, payload: bytes, places: tuple[int, ...]) -> None:
    with relay.client() as client:
        client.send(*cut(payload, *places))
        assert client.closed() == 1007


def test_binary_that_is_not_utf8_is_only_binary(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(BINARY, b"\xff"))
        assert json.loads(client.read().payload)["details"] == "a message must be text, not binary"
