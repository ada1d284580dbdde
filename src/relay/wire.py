"""Bytes to checked requests, and messages to bytes: the one place that reads and writes JSON on the hot path.

A body is decoded once, straight from its bytes, by a compiled decoder; `models.py` holds the rules. A message is
encoded once, when it is kept, and the same bytes serve every poll, history page and socket. Metadata is checked,
but its bytes are passed on as they came (without their white space): no number loses a digit on the way.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec import UNSET

from relay.errors import InvalidField, InvalidJson, MissingField
from relay.models import (
    DEFAULT_BOUNDS,
    MAX_TEXT_BYTES,
    MessageType,
    MetadataBounds,
    Number,
    check_id,
    check_text,
    check_ts,
)

_PREFIX = {kind: b'{"type":"%s","data":' % kind.value.encode() for kind in MessageType}
_MESSAGE_FRAME_PREFIX = b'{"type":"message","data":'

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
encode_lines = _encoder.encode_lines
_buffer = bytearray()
_sorting_encoder = msgspec.json.Encoder(order="sorted")


class NewPrompt(msgspec.Struct, gc=False, kw_only=True):
    """A checked prompt; with an id and a time it is the specification's PromptMessage, whose order its fields have."""

    session_id: str
    client_msg_id: str | None = None
    prompt: str
    metadata: msgspec.Raw | msgspec.UnsetType = UNSET
    ts: Number | None = None


class NewResponse(msgspec.Struct, gc=False, kw_only=True):
    """A checked response; with an id and a time it is the specification's AssistantMessage."""

    session_id: str
    assistant_msg_id: str | None = None
    client_msg_id: str
    text: str
    metadata: msgspec.Raw | msgspec.UnsetType = UNSET
    ts: Number | None = None


class _NewTicket(msgspec.Struct, gc=False):
    session_id: str | None = None


Meaning = tuple[str, str, bytes]
"""What a response says: see `meaning`."""

_Decoded = TypeVar("_Decoded")
_prompt_decoder = msgspec.json.Decoder(NewPrompt)
_response_decoder = msgspec.json.Decoder(NewResponse)
_decode_any = msgspec.json.Decoder().decode
_ticket_decoder = msgspec.json.Decoder(_NewTicket)


def decode_prompt(body: bytes, bounds: MetadataBounds = DEFAULT_BOUNDS) -> NewPrompt:
    """The prompt in a request body. Raises InvalidJson, MissingField, InvalidField or MessageTooLarge."""
    prompt = _decode(_prompt_decoder, body)
    if len(body) > MAX_TEXT_BYTES:  # no text is longer than the body around it
        check_text(prompt.prompt, "prompt")
    check_id(prompt.session_id, "session_id")
    if prompt.client_msg_id is not None:
        check_id(prompt.client_msg_id, "client_msg_id")
    if prompt.ts is not None:
        check_ts(prompt.ts, "ts")
    if prompt.metadata is not UNSET:
        prompt.metadata = _check_metadata(prompt.metadata, bounds)
    return prompt


def decode_response(body: bytes, bounds: MetadataBounds = DEFAULT_BOUNDS) -> NewResponse:
    """The response in a request body. Raises InvalidJson, MissingField, InvalidField or MessageTooLarge."""
    response = _decode(_response_decoder, body)
    if len(body) > MAX_TEXT_BYTES:
        check_text(response.text, "text")
    if response.assistant_msg_id is not None:
        check_id(response.assistant_msg_id, "assistant_msg_id")
    check_id(response.session_id, "session_id")
    check_id(response.client_msg_id, "client_msg_id")
    if response.ts is not None:
        check_ts(response.ts, "ts")
    if response.metadata is not UNSET:
        response.metadata = _check_metadata(response.metadata, bounds)
    return response


def decode_ticket(body: bytes) -> str | None:
    """The session for which a ticket is asked; None if it is for all. Raises InvalidJson or InvalidField."""
    session_id = _decode(_ticket_decoder, body).session_id
    if session_id is not None:
        check_id(session_id, "session_id")
    return session_id


def encode_message(message: NewPrompt | NewResponse) -> bytes:
    """The message as it is kept and served, once it has its id and time."""
    # Through a buffer: the encoder's own bytes keep up to half as much again of unused room; what is stored must not.
    _encoder.encode_into(message, _buffer)
    return bytes(_buffer)


def meaning(response: NewResponse) -> Meaning:
    """Its client_msg_id, text and metadata: equal for two responses if and only if they mean the same."""
    if response.metadata is UNSET:
        return response.client_msg_id, response.text, b""
    metadata = b"".join((response.metadata,))
    short = len(metadata) <= MAX_REMEMBERED_BYTES
    return response.client_msg_id, response.text, _canonical(metadata) if short else _canonical.__wrapped__(metadata)


def fingerprint(said: Meaning) -> bytes:
    """What remains of a meaning where it is to be compared by another process."""
    client_msg_id, text, metadata = said
    # No id holds a "/": the parts cannot run into each other.
    return hashlib.blake2b(f"{client_msg_id}/{len(text)}/{text}".encode() + metadata, digest_size=16).digest()


def history_item(kind: MessageType, data: bytes) -> tuple[bytes, bytes, bytes]:
    """A message as an element of GET /messages, in parts."""
    return _PREFIX[kind], data, b"}"


def message_frame(data: bytes) -> bytes:
    """An answer as the WebSocket frame that announces it."""
    return _MESSAGE_FRAME_PREFIX + data + b"}"


def _decode(decoder: msgspec.json.Decoder[_Decoded], body: bytes) -> _Decoded:
    try:
        if not body.isascii():
            body.decode()  # the decoder does not look into strings that it skips; also turns away UTF-16 and its like
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        complaint = str(exc)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidJson(_NOT_JSON) from None
    try:
        msgspec.json.decode(body)  # the complaint came at the first wrong value; the rest may not even be JSON
    except (msgspec.DecodeError, RecursionError):
        raise InvalidJson(_NOT_JSON) from None
    raise _explain(complaint)


_NOT_JSON = "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting"
_AT_FIELD = re.compile(r"`\$\.(\w+)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")
_EXPECTED = {"ts": "a number", "metadata": "an object"}


def _explain(complaint: str) -> MissingField | InvalidField:
    """Our error for what msgspec says of a body that is JSON but not the one we want."""
    if missing := _MISSING.search(complaint):
        return MissingField(missing[1])
    field = _AT_FIELD.search(complaint)
    if field is None:
        return InvalidField("the body must be a JSON object")
    if "got `null`" in complaint:
        return MissingField(field[1])
    return InvalidField(f"{field[1]} must be {_EXPECTED.get(field[1], 'a string')}")


MAX_REMEMBERED = 1_024
MAX_REMEMBERED_BYTES = 256
"""Longer metadata is checked each time: what strangers send must not fill the memory."""


def _check_metadata(metadata: msgspec.Raw, bounds: MetadataBounds) -> msgspec.Raw | msgspec.UnsetType:
    raw = b"".join((metadata,))
    if len(raw) > MAX_REMEMBERED_BYTES:
        return _checked(raw, bounds)
    checked = bounds.checked.get(raw)
    if checked is None:
        checked = _checked(raw, bounds)
        if len(bounds.checked) >= MAX_REMEMBERED:
            bounds.checked.clear()
        bounds.checked[raw] = checked
    return checked


def _checked(raw: bytes, bounds: MetadataBounds) -> msgspec.Raw | msgspec.UnsetType:
    """The metadata without white space."""
    if raw == b"null":
        return UNSET
    if raw[0] != _BRACE:
        raise InvalidField("metadata must be an object")
    try:
        if _SPACE in raw or _NEWLINE in raw or _RETURN in raw or _TAB in raw:  # else it is compact already
            raw = msgspec.json.format(raw, indent=-1)
        if len(raw) > bounds.max_bytes:
            raise bounds.too_large("metadata")
        value = _decode_any(raw)  # what it cannot decode, we could not serve again
    except (msgspec.DecodeError, RecursionError):
        raise InvalidJson("metadata holds what JSON cannot carry") from None
    # Unless there are that many brackets it cannot be nested deeper.
    if len(raw) > 2 * bounds.max_depth and raw.count(_BRACE) + raw.count(_BRACKET) > bounds.max_depth:
        bounds.check_depth(value, "metadata")
    return msgspec.Raw(raw)


# Characters as numbers: Python looks for one in bytes ten times as fast as for a string of one.
_SPACE, _NEWLINE, _RETURN, _TAB, _BRACE, _BRACKET = b" \n\r\t{["


@lru_cache(1024)
def _canonical(metadata: bytes) -> bytes:
    """One spelling for each meaning."""
    try:
        return _sorting_encoder.encode(_decode_any(metadata))
    except (OverflowError, msgspec.MsgspecError):  # an integer of more than 64 bits
        return json.dumps(json.loads(metadata), sort_keys=True, separators=(",", ":")).encode()
