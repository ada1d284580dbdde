"""What is committed, in memory: each session's row, and the messages that are in the journal only.

The event loop changes it, after a commit and while the writer's thread is idle; both may read it. It is bounded: a row
for each session, of which there are at most `max_sessions`, and JOURNAL_MESSAGES or JOURNAL_BYTES beside one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from relay.models import MessageType, Number
from relay.store.base import Entry

PROMPT = MessageType.PROMPT
"""By a name of its own: to look a member up in an enumeration takes as long as the rest of a line."""

JOURNAL_MESSAGES = 4096
JOURNAL_BYTES = 4 * 1024**2
"""What the journal holds, before it is moved to the tables."""


class Session(msgspec.Struct, gc=False):
    """A row of the table of this name."""

    id: int
    session_id: str
    epoch: str
    seq: int
    floor: int
    bytes: int
    pending: int
    created_ms: int
    active_ms: int


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message in the journal. All that was decided about it is in here: to keep it again needs no look around."""

    session_id: str
    epoch: str
    kind: MessageType
    message_id: str
    ts: Number
    data: bytes
    now_ms: int
    fingerprint: bytes
    answers: int
    """The seq of the pending prompt whose wait it ends, or 0."""


class Tail(msgspec.Struct):
    """The end of a session's log that the tables do not have: the entries after seq `start`."""

    start: int
    entries: list[Entry] = []
    prompts: dict[str, int] = {}
    """The seq of each prompt, by message_id."""
    responses: dict[str, tuple[int, bytes]] = {}
    """The seq and the fingerprint of each response, by message_id."""
    waiting: dict[int, Entry] = {}
    """The prompts that are pending, by seq."""
    answered: set[int] = set()
    """The prompts, of the tables too, whose wait an entry of this tail has ended."""

    def add(self, record: Record, entry: Entry) -> None:
        """Put an entry at the end."""
        self.entries.append(entry)
        if record.kind is PROMPT:
            self.prompts[record.message_id] = entry.seq
            self.waiting[entry.seq] = entry
            return
        self.responses[record.message_id] = entry.seq, record.fingerprint
        if record.answers:
            self.answered.add(record.answers)
            self.waiting.pop(record.answers, None)

    def after(self, seq: int, limit: int) -> list[Entry]:
        """Its entries after `seq`, at most `limit`."""
        first = max(0, seq - self.start)
        return self.entries[first : first + limit]


class Mirror:
    """The committed state."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        """In the order of their creation."""
        self.tails: dict[str, Tail] = {}
        self.next_id = 1
        self.journal_messages = 0
        self.journal_bytes = 0

    def tail(self, session: Session) -> Tail:
        """The session's tail; an empty one if the tables have everything."""
        return self.tails.get(session.session_id) or Tail(session.seq)

    def has_room(self, messages: int, size: int) -> bool:
        """Whether the journal can take so much more."""
        return self.journal_messages + messages <= JOURNAL_MESSAGES and self.journal_bytes + size <= JOURNAL_BYTES

    def settle(self) -> None:
        """The journal was moved to the tables."""
        self.tails = {}
        self.journal_messages = self.journal_bytes = 0

    def change(self, sessions: Mapping[str, Session | None]) -> None:
        """Sessions are now as given, new ones in the order of their creation; None are gone."""
        for session_id, session in sessions.items():
            if session is None:
                self.sessions.pop(session_id, None)
            else:
                self.sessions[session_id] = session

    def add(self, kept: Sequence[tuple[Record, Entry]], size: int) -> None:
        """The journal has these entries too, of so many bytes."""
        tails = self.tails
        for record, entry in kept:
            tail = tails.get(record.session_id)
            if tail is None:
                tail = tails[record.session_id] = Tail(entry.seq - 1)
            tail.add(record, entry)
        self.journal_messages += len(kept)
        self.journal_bytes += size
