"""Ping, pong and close: RFC 6455, sections 5.5 and 7."""

from __future__ import annotations

import pytest

from tests.protocol.websocket.conftest import Watched
from tests.protocol.websocket.frames import CLOSE, CONT, PING, PONG, TEXT, Received, close, frame

# Ping and pong


@pytest.mark.parametrize("payload", [b"", b"hello", b"\x00\xff\xfe", bytes(125)], ids=["empty", "text", "bytes", "125"])
def test_a_ping_gets_its_payload_back(relay: Watched, payload: bytes) -> None:
    with relay.client() as client:
        client.send(frame(PING, payload))
        assert client.read() == Received(PONG, payload)


def test_pings_in_one_packet_are_answered_in_their_order(relay: Watched) -> None:
    payloads = [b"%d" % number for number in range(99)]
    with relay.client() as client:
        client.send(*(frame(PING, payload) for payload in payloads))
        assert [client.read() for _ in payloads] == [Received(PONG, payload) for payload in payloads]


def test_a_ping_that_comes_byte_by_byte_is_answered(relay: Watched) -> None:
    with relay.client() as client:
        for byte in frame(PING, b"slow"):
            client.send(bytes([byte]))
        assert client.read() == Received(PONG, b"slow")


@pytest.mark.parametrize("payload", [b"", b"unasked"], ids=["empty", "text"])
def test_a_pong_that_nobody_asked_for_is_ignored(relay: Watched, payload: bytes) -> None:
    with relay.client() as client:
        client.send(*[frame(PONG, payload)] * 10, frame(PING, b"still there?"))
        assert client.read() == Received(PONG, b"still there?")


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
def test_a_control_frame_in_fragments_is_1002(relay: Watched, opcode: int) -> None:
    with relay.client() as client:
        client.send(frame(opcode, b"\x03\xe8", fin=False), frame(CONT, b"x"))
        assert client.closed() == 1002


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
@pytest.mark.parametrize("size", [126, 65_536])
def test_a_control_frame_over_125_bytes_is_1002(relay: Watched, opcode: int, size: int) -> None:
    with relay.client() as client:
        client.send(frame(opcode, b"\x03\xe8".ljust(size, b"x")))
        assert client.closed() == 1002


# Close


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
def test_a_close_code_is_echoed(relay: Watched, code: int) -> None:
    with relay.client() as client:
        client.send(close(code, b"bye"))
        assert client.closed() == code


def test_a_close_without_a_code_is_echoed_without_one(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(CLOSE))
        assert client.closed() is None


def test_a_close_reason_of_123_bytes_is_taken(relay: Watched) -> None:
    with relay.client() as client:
        client.send(close(1000, b"x" * 123))
        assert client.closed() == 1000


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535])
def test_a_close_code_that_may_not_be_sent_is_1002(relay: Watched, code: int) -> None:
    with relay.client() as client:
        client.send(close(code))
        assert client.closed() == 1002


def test_a_close_with_half_a_code_is_1002(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(CLOSE, b"\x03"))
        assert client.closed() == 1002


@pytest.mark.parametrize("reason", [b"\xff", b"caf\xc3", b"\xed\xa0\x80"], ids=["lone byte", "cut short", "surrogate"])
def test_a_close_reason_that_is_not_utf8_is_1007(relay: Watched, reason: bytes) -> None:
    with relay.client() as client:
        client.send(close(1000, reason))
        assert client.closed() == 1007


def test_a_close_within_a_fragmented_message_is_1002(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, b"a", fin=False), close(1000))
        assert client.closed() == 1002


@pytest.mark.parametrize(
    "late",
    [frame(TEXT, b'{"type":"ping"}'), frame(PING, b"x"), close(1001), frame(TEXT, b"\xff"), frame(3), b"\xff" * 50],
    ids=["text", "ping", "close", "not UTF-8", "reserved opcode", "noise"],
)
def test_what_comes_after_a_close_is_ignored(relay: Watched, late: bytes) -> None:
    with relay.client() as client:
        client.send(close(1000), late)
        assert client.closed() == 1000


def test_what_comes_after_a_mistake_is_ignored(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(3), frame(PING, b"x"), frame(TEXT, b"\xff"), close(1000))
        assert client.closed() == 1002


def test_bad_text_is_1007_whatever_follows_it(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, b"\xff"), frame(TEXT, b"\xff"), frame(TEXT, b'{"type":"ping"}'), frame(PONG))
        assert client.closed() == 1007


@pytest.mark.not_by_uvicorn("it fails with InvalidState, and asyncio logs the traceback")
def test_bad_text_with_a_close_behind_it_is_1007(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, b"\xff"), close(1000))
        assert client.closed() == 1007


def test_a_connection_that_ends_without_a_close_is_no_error(relay: Watched) -> None:
    with relay.client() as client:
        client.send(frame(TEXT, b"hal", fin=False), frame(PING, b"x")[:-1])
