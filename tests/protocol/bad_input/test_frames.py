"""What WebSocket clients may not say, and handshakes that are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.protocol.bad_input.conftest import unharmed
from tests.protocol.conftest import Listen
from tests.protocol.talk import Address, Talk, closed, next_frame

MAX_FRAME_BYTES = 65_536


def an_error(code: str, details: str) -> dict[str, Any]:
    return {"type": "error", "error": "Invalid message", "details": details, "code": code}


NO_OBJECT_WITH_A_TYPE = "a message must be a JSON object with a type"
NOT_JSON = an_error("invalid_json", NO_OBJECT_WITH_A_TYPE)
NO_TYPE = an_error("invalid_field", NO_OBJECT_WITH_A_TYPE)
UNKNOWN_TYPE = an_error("invalid_field", "type must be ping or pong")
BINARY = an_error("invalid_field", "a message must be text, not binary")

JUNK: dict[str, tuple[str | bytes, dict[str, Any]]] = {
    "empty": ("", NOT_JSON),
    "word": ("hello", NOT_JSON),
    "cut short": ('{"type":"ping"', NOT_JSON),
    "text after the end": ('{"type":"ping"} x', NOT_JSON),
    "two documents": ('{"type":"ping"}{"type":"ping"}', NOT_JSON),
    "byte order mark": ('\ufeff{"type":"ping"}', NOT_JSON),
    "NaN": ('{"type":"ping","ts":NaN}', NOT_JSON),
    "lone surrogate as type": (r'{"type":"\ud800"}', NOT_JSON),
    "lone surrogate elsewhere": (r'{"type":"ping","x":"\udc00"}', NOT_JSON),
    "nested 30000 deep": ('{"type":"ping","x":' + "[" * 30_000 + "]" * 30_000 + "}", NOT_JSON),
    "array": ("[]", NO_TYPE),
    "string": ('"ping"', NO_TYPE),
    "number": ("1", NO_TYPE),
    "null": ("null", NO_TYPE),
    "no type": ('{"ts":1}', NO_TYPE),
    "type is null": ('{"type":null}', NO_TYPE),
    "type is a number": ('{"type":1}', NO_TYPE),
    "type is an array": ('{"type":["ping"]}', NO_TYPE),
    "unknown type": ('{"type":"nope"}', UNKNOWN_TYPE),
    "empty type": ('{"type":""}', UNKNOWN_TYPE),
    "capitals": ('{"type":"PING"}', UNKNOWN_TYPE),
    "server's type": ('{"type":"message","data":{}}', UNKNOWN_TYPE),
    "prompt": ('{"type":"prompt","prompt":"Hello"}', UNKNOWN_TYPE),
    "binary": (b"\x00\xff", BINARY),
    "binary ping": (b'{"type":"ping"}', BINARY),
    "empty binary": (b"", BINARY),
}


@pytest.mark.parametrize(("frame", "expected"), JUNK.values(), ids=JUNK)
def test_junk_gets_an_error_and_the_socket_stays_open(
    talk: Talk, listen: Listen, frame: str | bytes, expected: dict[str, Any]
) -> None:
    with listen() as client:
        with unharmed(talk):
            client.send(frame)
            assert next_frame(client) == expected
        assert next_frame(client)["data"]["text"] == "Yes."
        talk.round_trip(client)


def test_many_junk_frames_get_as_many_errors(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        for frame, _ in list(JUNK.values()) * 3:  # fewer than 100: more at once are too many of any kind
            client.send(frame)
        for _, expected in list(JUNK.values()) * 3:
            assert next_frame(client) == expected
        talk.round_trip(client)


def test_many_junk_frames_that_nobody_reads_the_errors_of(talk: Talk, listen: Listen) -> None:
    """Another client of the session notices nothing."""
    with listen() as client, listen(close_timeout=0.1) as rude:
        for n in range(90):
            rude.send(f"junk {n}")
        talk.round_trip(client)


def test_more_messages_than_anybody_needs_close_the_socket(talk: Talk, listen: Listen) -> None:
    with listen() as other:
        with unharmed(talk), listen() as client:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(500):
                    client.send('{"type":"pong"}')
            assert closed(client) == (1008, "too many messages")
        assert next_frame(other)["data"]["text"] == "Yes."


def test_a_ping_gets_a_pong_and_a_pong_gets_nothing(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        client.send('{"type":"pong","ts":1}')
        client.send('{"type":"pong"}')
        client.send('{"type":"ping","ts":1}')
        pong = next_frame(client)
        assert pong == {"type": "pong", "ts": pong["ts"]}
        assert isinstance(pong["ts"], int)
        talk.round_trip(client)


def _ping(size: int) -> str:
    """A ping that takes so many bytes."""
    return '{"type":"ping","x":"%s"}' % ("x" * (size - len('{"type":"ping","x":""}')))


def test_a_frame_of_64_kib_is_read(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        client.send(_ping(MAX_FRAME_BYTES))
        assert next_frame(client)["type"] == "pong"
        talk.round_trip(client)


@pytest.mark.parametrize(
    "message",
    [
        _ping(MAX_FRAME_BYTES + 1),
        "é" * (MAX_FRAME_BYTES // 2 + 1),
        _ping(1_000_000),
        b"x" * (MAX_FRAME_BYTES + 1),
        ["x" * 40_000, "x" * 40_000],
    ],
    ids=["text", "two-byte characters", "long text", "binary", "two fragments"],
)
def test_a_message_over_64_kib_closes_the_socket(talk: Talk, listen: Listen, message: str | bytes | list[str]) -> None:
    with listen() as other:
        with unharmed(talk), listen() as client:
            with contextlib.suppress(ConnectionClosed):  # perhaps before the last fragment was sent
                client.send(message)
            assert closed(client)[0] == 1009
        assert next_frame(other)["data"]["text"] == "Yes."


def test_text_that_is_not_utf_8_closes_the_socket(talk: Talk, listen: Listen) -> None:
    with unharmed(talk), listen() as client:
        client.send(b"\xff", text=True)
        assert closed(client)[0] == 1007


# Handshakes


NO_SESSION = {"error": "Session does not exist", "code": "session_not_found"}
NO_WEBSOCKET = {"error": "Not found", "details": "WebSockets are served at /ws/{session_id}", "code": "not_found"}
NO_ID = {
    "error": "This path is a WebSocket",
    "details": "the path is /ws/{session_id}",
    "code": "upgrade_required",
}


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        pytest.param("/ws/" + "x" * 257, 404, NO_SESSION, id="257 characters"),
        pytest.param("/ws/%01", 404, NO_SESSION, id="control character"),
        pytest.param("/ws/%00", 404, NO_SESSION, id="NUL"),
        pytest.param("/ws/a%0Ab", 404, NO_SESSION, id="newline"),
        pytest.param("/ws/%C2%85", 404, NO_SESSION, id="C1 control character"),
        pytest.param("/ws/.", 404, NO_SESSION, id="dot"),
        pytest.param("/ws/%2E", 404, NO_SESSION, id="escaped dot"),
        pytest.param("/ws/..", 404, NO_SESSION, id="two dots"),
        pytest.param("/ws", 400, NO_ID, id="no id"),
        pytest.param("/ws/", 400, NO_ID, id="empty id"),
        pytest.param("/ws/?session_id=a", 400, NO_ID, id="id in the query"),
        pytest.param("/ws/a/b", 404, NO_WEBSOCKET, id="slash"),
        pytest.param("/ws/a%2Fb", 404, NO_WEBSOCKET, id="escaped slash"),
        pytest.param("/ws/a/", 404, NO_WEBSOCKET, id="trailing slash"),
        pytest.param("/nope", 404, NO_WEBSOCKET, id="unknown route"),
        pytest.param("/", 404, NO_WEBSOCKET, id="root"),
        pytest.param("/prompt", 404, NO_WEBSOCKET, id="route of a POST"),
        pytest.param("/messages/a", 404, NO_WEBSOCKET, id="route of a GET"),
    ],
)
def test_a_handshake_that_is_refused(talk: Talk, at: Address, path: str, status: int, error: dict[str, str]) -> None:
    with unharmed(talk):
        with pytest.raises(InvalidStatus) as refused, at.connect(path):
            pass
        answer = refused.value.response
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert json.loads(answer.body) == error
