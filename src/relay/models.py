"""The wire: the specification's messages as Pydantic models, and the rules their fields obey.

These definitions feed OpenAPI, the documentation and the SDK. The server decodes request bodies with the
compiled decoder in `wire.py`, which calls the same `check_*` rules; a property test holds the two together.
Nothing here knows how a message is stored or sent.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, WithJsonSchema

from relay.errors import ErrorCode, InvalidField, MessageTooLarge

MAX_TEXT_BYTES = 131_072
"""The specification's 128KB, of UTF-8, inclusive."""

MAX_ID_CHARS = 256
MAX_TS_MS = 8.64e15
"""The last millisecond a JavaScript Date can hold: what a browser cannot show, nobody meant."""

Number = int | float

# Control characters would break logs and terminals; "/", "." and ".." could never be reached as a path.
_ID = re.compile(rf"[^\x00-\x1f\x7f-\x9f/]{{1,{MAX_ID_CHARS}}}")
ID_RULE = f"must be 1 to {MAX_ID_CHARS} characters, without '/' or control characters, and not '.' or '..'"


class MessageType(str, Enum):
    """The two kinds of entry in a session's history."""

    PROMPT = "prompt"
    ASSISTANT = "assistant"


# To look a member up in its class takes Python 3.11 a tenth of a microsecond: too much for what each message needs.
PROMPT = MessageType.PROMPT
ASSISTANT = MessageType.ASSISTANT


def check_id(value: str, field: str) -> None:
    """Raise InvalidField unless `value` can be a session or message id."""
    # The usual ones without the regular expression, which takes as long as to decode the message. No control character
    # is printable.
    size = len(value)
    if size > 2 and size <= MAX_ID_CHARS and value.isprintable() and "/" not in value:
        return
    if _ID.fullmatch(value) is None or value == "." or value == "..":
        raise InvalidField(f"{field} {ID_RULE}")


def check_text(value: str, field: str) -> None:
    """Raise MessageTooLarge if a prompt or text is over its bound in UTF-8."""
    if len(value.encode()) > MAX_TEXT_BYTES:
        raise MessageTooLarge(f"{field} is over {MAX_TEXT_BYTES} bytes of UTF-8")


def check_ts(value: Number, field: str) -> None:
    """Raise InvalidField unless `value` is a time in Unix milliseconds."""
    if not 0 <= value <= MAX_TS_MS:
        raise InvalidField(f"{field} must be a number from 0 to 8.64e15 (Unix time in milliseconds)")


@dataclass(frozen=True, eq=False)
class MetadataBounds:
    """How large metadata may be. Each is equal only to itself: to compare values would take longer than a check."""

    max_bytes: int = 65_536
    max_depth: int = 32
    checked: dict[bytes, Any] = field(default_factory=dict, repr=False)
    """What was found to be within the bounds, by its bytes. It is `wire.py` that remembers it."""

    def too_large(self, field: str) -> MessageTooLarge:
        """The refusal of metadata that is over its bound as compact JSON."""
        return MessageTooLarge(f"{field} is over {self.max_bytes} bytes of JSON")

    def check_depth(self, value: object, field: str) -> None:
        """Raise InvalidField if objects and arrays are nested deeper than the bound; `value` itself is level 1."""
        level, depth = [value], 0
        while level := [v for v in level if isinstance(v, dict | list)]:
            depth += 1
            if depth > self.max_depth:
                raise InvalidField(f"{field} is nested deeper than {self.max_depth} levels")
            level = [child for v in level for child in (v.values() if isinstance(v, dict) else v)]


DEFAULT_BOUNDS = MetadataBounds()


def _id(value: str, info: ValidationInfo) -> str:
    check_id(value, str(info.field_name))
    return value


def _text(value: str, info: ValidationInfo) -> str:
    check_text(value, str(info.field_name))
    return value


def _ts(value: Number, info: ValidationInfo) -> Number:
    check_ts(value, str(info.field_name))
    return value


def _finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and Infinity are not JSON")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _finite(child)


def _metadata(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    field = str(info.field_name)
    DEFAULT_BOUNDS.check_depth(value, field)
    _finite(value)
    if len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > DEFAULT_BOUNDS.max_bytes:
        raise DEFAULT_BOUNDS.too_large(field)
    return value


ID_SCHEMA: dict[str, JsonValue] = {
    "minLength": 1,
    "maxLength": MAX_ID_CHARS,
    "pattern": r"^(?!\.{1,2}$)[^\u0000-\u001f\u007f-\u009f/]+$",
}
Id = Annotated[str, AfterValidator(_id), Field(json_schema_extra=ID_SCHEMA)]
Text = Annotated[str, AfterValidator(_text), Field(json_schema_extra={"maxLength": MAX_TEXT_BYTES})]
TimestampMs = Annotated[Number, AfterValidator(_ts), Field(json_schema_extra={"minimum": 0, "maximum": MAX_TS_MS})]
Metadata = Annotated[
    dict[str, JsonValue],
    AfterValidator(_metadata),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class PromptIn(_Message):
    """What a client posts."""

    session_id: Id = Field(description=f"The conversation. Created if new. {ID_RULE.capitalize()}.")
    prompt: Text = Field(description=f"What to ask; at most {MAX_TEXT_BYTES:,} bytes of UTF-8.")
    client_msg_id: Id | None = Field(None, description="Unique per session; a UUID v4 if missing.")
    metadata: Metadata | None = Field(None, description="Any object; stored and handed on untouched.")
    ts: TimestampMs | None = Field(None, description="Unix time in milliseconds; the server's if missing.")


class ResponseIn(_Message):
    """What an agent posts."""

    session_id: Id = Field(description="The conversation; it must exist.")
    client_msg_id: Id = Field(description="The prompt that this answers.")
    text: Text = Field(description=f"The answer; at most {MAX_TEXT_BYTES:,} bytes of UTF-8.")
    assistant_msg_id: Id | None = Field(None, description="Unique per session; a UUID v4 if missing.")
    metadata: Metadata | None = Field(None, description="Any object; stored and handed on untouched.")
    ts: TimestampMs | None = Field(None, description="Unix time in milliseconds; the server's if missing.")


class PromptMessage(_Message):
    """A prompt as it is stored and served. `metadata` is absent if none was given."""

    session_id: Id
    client_msg_id: Id
    prompt: Text
    metadata: Metadata | None = None
    ts: TimestampMs


class AssistantMessage(_Message):
    """An answer as it is stored, served and broadcast. `metadata` is absent if none was given."""

    session_id: Id
    assistant_msg_id: Id
    client_msg_id: Id
    text: Text
    metadata: Metadata | None = None
    ts: TimestampMs


class TicketIn(_Message):
    """Asks for a ticket."""

    session_id: Id | None = Field(None, description="The only session it shall be good for.")


class Ticket(_Message):
    """Lets one WebSocket in, once."""

    ticket: str
    expires_in: int = Field(description="Seconds.")


class PromptStored(_Message):
    """The prompt is kept, now or by an earlier request with the same id."""

    stored: Literal[True]
    client_msg_id: Id


class ResponseAccepted(_Message):
    """The answer is kept and was handed to every connected client."""

    ok: Literal[True]
    assistant_msg_id: Id
    delivered: Literal[True]
    recipients: int = Field(ge=0, description="Clients of this session connected to this instance.")


class PromptEntry(_Message):
    """A prompt in the history."""

    type: Literal["prompt"]
    data: PromptMessage


class AssistantEntry(_Message):
    """An answer in the history."""

    type: Literal["assistant"]
    data: AssistantMessage


class History(_Message):
    """One page of a session's messages, oldest first."""

    session_id: Id
    messages: list[PromptEntry | AssistantEntry]
    total: int = Field(ge=0, description="Messages that match `since`, before limit and offset.")
    limit: int
    offset: int


class Session(_Message):
    """What is known of one session. The counts of listeners are this instance's."""

    session_id: Id
    created: Number = Field(description="Unix time in milliseconds.")
    last_activity: Number = Field(description="Unix time in milliseconds.")
    messages: int = Field(ge=0, description="Messages held in the history.")
    pending: int = Field(ge=0, description="Prompts without an answer.")
    clients: int = Field(ge=0, description="Connected WebSocket clients.")
    waiting_agents: int = Field(ge=0, description="Polls waiting for a prompt.")


class SessionPage(_Message):
    """One page of all sessions, oldest first."""

    sessions: list[Session]
    total: int = Field(ge=0)
    limit: int
    offset: int


class Deleted(_Message):
    """The session and everything in it is gone."""

    deleted: Literal[True]


class Health(_Message):
    """The server can do its job."""

    ok: Literal[True]
    timestamp: Number = Field(description="Unix time in milliseconds.")


class ErrorResponse(_Message):
    """Every error, on every path."""

    error: str = Field(description="For people; the sentence may improve.")
    details: str | None = Field(None, description="The field or bound in question.")
    code: ErrorCode = Field(description="For programs; stable.")
