"""What a WebSocket client says in a text message: a pong, a ping, or something that gets an error."""

from __future__ import annotations

import json

from fuzz import strict_json
from relay.server.ws import answer_client

_ERRORS = {
    ("invalid_json", "a message must be a JSON object with a type"),
    ("invalid_field", "a message must be a JSON object with a type"),
    ("invalid_field", "type must be ping or pong"),
}


def client_message(data: bytes) -> None:
    """One text message; uvicorn has turned away what is not UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    document = strict_json.read(data)
    frame = answer_client(text, 1234)
    answer = None if frame is None else json.loads(frame.text)
    if answer is not None and answer["type"] == "error":
        assert (answer["code"], answer["details"]) in _ERRORS, answer
    else:
        assert document is not None, "not JSON, but understood"
    # What is not JSON may be called the wrong JSON: the decoder stops at the first thing that it cannot use.
    if document is not None and document.is_plain:
        assert _kind(answer) == _expected(document.value), answer


def _kind(answer: dict[str, object] | None) -> object:
    if answer is None:
        return "nothing"
    if answer["type"] == "error":
        return answer["details"]
    assert answer == {"type": "pong", "ts": 1234}
    return "pong"


def _expected(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return "a message must be a JSON object with a type"
    return {"ping": "pong", "pong": "nothing"}.get(kind, "type must be ping or pong")
