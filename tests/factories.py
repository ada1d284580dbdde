"""Makes what a test needs and fills in everything that it does not speak about."""

from __future__ import annotations

from typing import Any

from relay.config import Settings
from relay.models import MessageType, Number
from relay.store.base import Entry, NewEntry, StoreLimits
from relay.wire import NewPrompt, NewResponse, encode_message, meaning

GENEROUS = StoreLimits(
    history=True,
    history_max_messages=10_000,
    history_max_bytes=64 * 1024**2,
    max_pending_per_session=1_000,
    max_sessions=10_000,
    store_max_bytes=512 * 1024**2,
)


def some_settings(**changed: Any) -> Settings:
    """Default settings, whatever the environment says."""
    return Settings.model_construct(**{name: field.default for name, field in Settings.model_fields.items()} | changed)


def a_prompt(
    message_id: str = "p1", *, session_id: str = "s1", prompt: str = "Hello", ts: Number = 1, now_ms: int = 1
) -> NewEntry:
    """A prompt for a store."""
    new = NewPrompt(session_id=session_id, client_msg_id=message_id, prompt=prompt, ts=ts)
    return NewEntry(session_id, MessageType.PROMPT, message_id, message_id, ts, encode_message(new), now_ms)


def a_response(
    message_id: str = "a1",
    *,
    to: str = "p1",
    session_id: str = "s1",
    text: str = "Hi there!",
    ts: Number = 2,
    now_ms: int = 2,
) -> NewEntry:
    """A response for a store."""
    new = NewResponse(session_id=session_id, assistant_msg_id=message_id, client_msg_id=to, text=text, ts=ts)
    data = encode_message(new)
    return NewEntry(session_id, MessageType.ASSISTANT, message_id, to, ts, data, now_ms, meaning(new))


class Listening:
    """A store's listener that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int]] = []
        self.deleted: list[str] = []
        self.lost = 0

    def entry_added(self, session_id: str, epoch: str, entry: Entry) -> None:
        """Remember it."""
        self.heard.append((session_id, epoch, entry.seq))

    def session_deleted(self, session_id: str) -> None:
        """Remember it."""
        self.deleted.append(session_id)

    def announcements_lost(self) -> None:
        """Remember it."""
        self.lost += 1
