"""The opening handshake: RFC 6455, section 4."""

from __future__ import annotations

import pytest

from tests.protocol.websocket.conftest import Watched
from tests.protocol.websocket.frames import ACCEPT, HANDSHAKE, PING, PONG, TEXT, Received, close, frame

PATH = "/ws/handshake"


def test_headers_are_read_in_any_case(relay: Watched) -> None:
    for spell in (str.lower, str.upper, str.title):
        with relay.dialled() as client:
            client.request(PATH, {spell(name): value for name, value in HANDSHAKE.items()})
            status, headers = client.response()
            assert (status, headers["sec-websocket-accept"]) == (101, ACCEPT)


@pytest.mark.parametrize(
    "changed",
    [
        {"Upgrade": "WebSocket"},
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "upgrade"},
        {"Sec-WebSocket-Extensions": "permessage-unheard-of; x=1"},
        {"Sec-WebSocket-Protocol": "chat, superchat"},
        {"Cookie": "a=b; c=\xe9"},
    ],
    ids=["capitals", "list", "small", "extension", "subprotocols", "Latin-1"],
)
def test_a_handshake_in_other_words_is_accepted(relay: Watched, changed: dict[str, str]) -> None:
    with relay.dialled() as client:
        client.request(PATH, HANDSHAKE | changed)
        status, headers = client.response()
        assert (status, headers["sec-websocket-accept"]) == (101, ACCEPT)
        assert not {"sec-websocket-extensions", "sec-websocket-protocol"} & set(headers)
        client.send(frame(PING, b"x"))
        assert client.read() == Received(PONG, b"x")


def test_a_handshake_that_comes_byte_by_byte_is_accepted(relay: Watched) -> None:
    head = f"GET {PATH} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in HANDSHAKE.items()) + "\r\n"
    with relay.dialled() as client:
        for byte in head.encode():
            client.send(bytes([byte]))
        assert client.response()[0] == 101


@pytest.mark.parametrize(
    "changed",
    [
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Key": ""},
        {"Sec-WebSocket-Key": "dG9vIHNob3J0"},
        {"Sec-WebSocket-Key": "=" * 24},
        {"Sec-WebSocket-Key": "\xff" * 24},
        {"Sec-WebSocket-Version": None},
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Version": "x"},
        {"Sec-WebSocket-Protocol": "\xff"},
        {"Sec-WebSocket-Protocol": "a,,b c"},
    ],
    ids=ascii,
)
def test_a_handshake_that_is_wrong_is_refused(relay: Watched, changed: dict[str, str | None]) -> None:
    with relay.dialled() as client:
        client.request(PATH, {n: v for n, v in (HANDSHAKE | changed).items() if v is not None})
        assert client.response()[0] == 400


@pytest.mark.not_by_uvicorn("it warns in the log of each upgrade that it does not know")
@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "\xff"], ids=ascii)
def test_an_upgrade_to_something_else_is_an_ordinary_get(relay: Watched, upgrade: str) -> None:
    with relay.dialled() as client:
        client.request(PATH, HANDSHAKE | {"Upgrade": upgrade})
        assert client.response()[0] == 400


@pytest.mark.parametrize("name", ["Sec-WebSocket-Key", "Sec-WebSocket-Version"])
def test_a_header_that_may_come_once_comes_twice(relay: Watched, name: str) -> None:
    with relay.dialled() as client:
        client.request(PATH, [*HANDSHAKE.items(), (name, HANDSHAKE[name])])
        assert client.response()[0] == 400


@pytest.mark.not_by_uvicorn("it only says 400")
def test_another_version_is_told_which_one_is_spoken(relay: Watched) -> None:
    with relay.dialled() as client:
        client.request(PATH, HANDSHAKE | {"Sec-WebSocket-Version": "8"})
        status, headers = client.response()
        assert (status, headers["sec-websocket-version"]) == (400, "13")


@pytest.mark.not_by_uvicorn("it never answers, and keeps the connection", run=False)
def test_a_long_cookie_is_no_hindrance(relay: Watched) -> None:
    with relay.dialled() as client:
        client.request(PATH, HANDSHAKE | {"Cookie": "a=" + "x" * 10_000})
        assert client.response()[0] == 101


@pytest.mark.parametrize(
    "early", [frame(PING, b"x"), close(1000), frame(3), frame(TEXT, b"\xff")], ids=["ping", "close", "wrong", "text"]
)
def test_frames_before_the_handshake_is_answered_break_nothing(relay: Watched, early: bytes) -> None:
    with relay.dialled() as client:
        client.request(PATH, HANDSHAKE)
        client.send(early)
        assert client.response()[0] == 101
