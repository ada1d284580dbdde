"""fuzz/: what coverage-guided runs found worth keeping, run again without the fuzzer; and the judge is judged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from fuzz import speak_websocket, strict_json
from fuzz.targets import TARGETS, kept
from relay.server.fastdoor import FastDoor
from relay.server.ws_protocol import WebSocketProtocol
from tests.protocol.websocket.frames import PING, TEXT, close, frame
from tests.test_wire import json_values


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_is_handled(name: str) -> None:
    with TARGETS[name].open() as target:
        for data in kept(name):
            target(data)


EARLY = {
    "ping": frame(PING, b"x"),
    "close": close(1000),
    "wrong": frame(3),
    "not UTF-8": frame(TEXT, b"\xff"),
    "not UTF-8, then close": frame(TEXT, b"\xff") + close(1000),
}


@pytest.mark.parametrize("packet", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("protocol", [FastDoor, WebSocketProtocol])
def test_frames_that_come_before_the_handshake_is_answered_wait_for_it(protocol: object, packet: bytes) -> None:
    """Over a real network it would be a race."""
    with speak_websocket.opened(protocol) as target:
        target(b"\x80" + packet)


# The second opinion on JSON


@given(json_values)
def test_json_means_the_same_to_the_strict_reader(value: object) -> None:
    for escaped in (True, False):
        document = strict_json.read(json.dumps(value, ensure_ascii=escaped, indent=1).encode())
        assert document is not None
        assert document.value == value


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"x", b"nul", b"NaN", b"-", b"01", b"1.", b".5", b"1e", b"+1", b"1\xef\xbc\x91", b"1 2"),
        *(b"\0", b"1\0"),
        *(b'"', b'"\n"', b'"\\x"', b'"\\u12"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"'),
        *(b'"\xff"', b'\xef\xbb\xbf""'),
        *(b"[", b"[1", b"[1,]", b"[,]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b"{1:1}", b"{,}", b"]"),
    ],
)  # fmt: skip
def test_what_is_not_json_is_nothing_to_the_strict_reader(body: bytes) -> None:
    assert strict_json.read(body) is None


def test_the_strict_reader_tells_what_decoders_may_see_differently() -> None:
    doubled, endless, deep = (strict_json.read(b) for b in (b'[{"a":1,"a":2}]', b"[-1e400]", b"[" * 101 + b"]" * 101))
    assert doubled and endless and deep  # noqa: PT018
    assert (doubled.doubled_keys, endless.endless_number, deep.too_deep) == (True, True, True)
    assert not any(document.is_plain for document in (doubled, endless, deep))
