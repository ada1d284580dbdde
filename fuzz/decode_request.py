"""The bodies of the two POSTs: refused with one of our errors, or kept and served again as they were meant."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ValidationError

from fuzz import strict_json
from relay import wire
from relay.errors import InvalidJson, RelayError
from relay.models import AssistantMessage, MessageType, PromptIn, PromptMessage, ResponseIn

# The names of fields and our own words: `details` never echoes what the caller sent.
_DETAILS = re.compile(
    r"(session_id|client_msg_id|assistant_msg_id|prompt|text|metadata|ts) (is|must be|holds) [ -~]+"
    r"|the body must be [ -~]+"
)

_GOOD_PROMPT = {"session_id": b'"s"', "prompt": b'"p"'}
_GOOD_RESPONSE = {"session_id": b'"s"', "client_msg_id": b'"c"', "text": b'"t"'}
_FIELDS = ["session_id", "client_msg_id", "assistant_msg_id", "prompt", "text", "metadata", "ts", "unknown"]


def spelled(data: bytes, good: dict[str, bytes]) -> bytes:
    """The body: `data` itself or, if it begins with the number of a field, a good body with that field spelled so.

    No JSON begins with such a byte. Nearly every change to a whole body spoils it before it comes to its fields.
    """
    if not data or data[0] >= len(_FIELDS):
        return data
    fields = good | {_FIELDS[data[0]]: data[1:]}
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())


def prompt(data: bytes) -> None:
    """POST /prompt."""
    body = spelled(data, _GOOD_PROMPT)
    document = strict_json.read(body)
    try:
        decoded = wire.decode_prompt(body)
    except RelayError as error:
        check_refusal(error, document, PromptIn, body)
        return
    given = check_accepted(document, PromptIn, body)
    if given is None:
        return
    decoded.client_msg_id = "made-up" if decoded.client_msg_id is None else decoded.client_msg_id
    decoded.ts = 7 if decoded.ts is None else decoded.ts
    served = wire.encode_message(decoded)
    check_served(served, given, PromptMessage, client_msg_id=decoded.client_msg_id, ts=decoded.ts)
    assert wire.encode_message(wire.decode_prompt(served)) == served
    json.loads(b"".join(wire.history_item(MessageType.PROMPT, served)))


def response(data: bytes) -> None:
    """POST /response."""
    body = spelled(data, _GOOD_RESPONSE)
    document = strict_json.read(body)
    try:
        decoded = wire.decode_response(body)
    except RelayError as error:
        check_refusal(error, document, ResponseIn, body)
        return
    given = check_accepted(document, ResponseIn, body)
    if given is None:
        return
    decoded.assistant_msg_id = "made-up" if decoded.assistant_msg_id is None else decoded.assistant_msg_id
    decoded.ts = 7 if decoded.ts is None else decoded.ts
    served = wire.encode_message(decoded)
    check_served(served, given, AssistantMessage, assistant_msg_id=decoded.assistant_msg_id, ts=decoded.ts)
    again = wire.decode_response(served)
    assert wire.encode_message(again) == served
    assert wire.meaning(again) == wire.meaning(decoded)
    json.loads(b"".join(wire.history_item(MessageType.ASSISTANT, served)))
    json.loads(wire.message_frame(served))


def check_refusal(
    error: RelayError, document: strict_json.Document | None, model: type[BaseModel], body: bytes
) -> None:
    """It was refused for a reason, and the answer says it without repeating the caller's words."""
    answer = json.loads(wire.encode(error.as_dict()))
    assert _DETAILS.fullmatch(answer["details"]), answer
    if document is None:
        assert isinstance(error, InvalidJson), error
    elif document.is_plain:
        assert not isinstance(error, InvalidJson), error
        assert not accepted_by(model, body), error


def check_accepted(document: strict_json.Document | None, model: type[BaseModel], body: bytes) -> dict[str, Any] | None:
    """It was taken, and rightly so; what the caller meant, unless there was no looking so deep."""
    assert document is not None, "not JSON, but taken"
    if document.too_deep:
        return None
    # Of a key that comes twice the last one counts everywhere; but some decoders do not look at the first.
    assert not document.is_plain or accepted_by(model, body), "taken by one decoder, refused by the other"
    known = model.model_fields
    return {name: value for name, value in document.value.items() if name in known and value is not None}


def accepted_by(model: type[BaseModel], body: bytes) -> bool:
    """Whether the Pydantic model takes it."""
    try:
        model.model_validate_json(body)
    except (ValidationError, RelayError):
        return False
    return True


def check_served(served: bytes, given: dict[str, Any], model: type[BaseModel], **made_up: object) -> None:
    """What is kept and served is JSON for everybody, fits its model, and says what was given."""
    document = strict_json.read(served)
    assert document is not None
    assert document.value == {**given, **made_up}
    assert json.loads(served) == document.value
    model.model_validate_json(served)
