"""What is committed, in memory and for readers: each session's row, and the messages that are in the journal only.

The event loop changes it, after a commit and while the writer's thread is idle; both may read it. It is bounded: a row
for each session, of which there are at most `max_sessions`, and what `Journal` lets the journal hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relay.store.base import Entry
from relay.store.sqlite_journal import PROMPT, Move, Record


class Session(msgspec.Struct, gc=False):
    """A row of the table of this name, as it would be if the journal had been moved."""

    id: int
    session_id: str
    epoch: str
    seq: int
    floor: int
    bytes: int
    pending: int
    created_ms: int
    active_ms: int


class Tail(msgspec.Struct):
    """The end of a session's log that the tables do not have: the entries after seq `start`."""

    start: int
    entries: list[Entry] = []
    waiting: dict[int, Entry] = {}
    """The prompts that are pending, by seq."""
    answered: set[int] = set()
    """The prompts, of the tables too, whose wait an entry of this tail has ended."""

    def after(self, seq: int, limit: int) -> list[Entry]:
        """Its entries after `seq`, at most `limit`."""
        first = max(0, seq - self.start)
        return self.entries[first : first + limit]

    def cut(self, records: Sequence[Record]) -> None:
        """The tables have its first entries, which came from these records."""
        self.start = records[-1].seq
        del self.entries[: len(records)]
        for record in records:
            self.waiting.pop(record.seq, None)
        self.answered -= {record.answers for record in records}


class Mirror:
    """The committed state."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        """In the order of their creation."""
        self.tails: dict[int, Tail] = {}
        """By the session's id."""
        self.next_id = 1

    def tail(self, session: Session) -> Tail:
        """The session's tail; an empty one if the tables have everything."""
        return self.tails.get(session.id) or Tail(session.seq)

    def change(self, sessions: Mapping[str, Session | None]) -> None:
        """Sessions are now as given, new ones in the order of their creation; None are gone."""
        for session_id, session in sessions.items():
            if session is not None:
                self.sessions[session_id] = session
            elif gone := self.sessions.pop(session_id, None):
                self.tails.pop(gone.id, None)

    def add(self, records: Iterable[Record], entries: Iterable[Entry]) -> None:
        """The journal has these records too, and the logs these entries, one for each."""
        tails = self.tails
        for record, entry in zip(records, entries, strict=True):
            tail = tails.get(record.session)
            if tail is None:
                tail = tails[record.session] = Tail(entry.seq - 1)
            tail.entries.append(entry)
            if entry.kind is PROMPT:
                tail.waiting[entry.seq] = entry
            elif record.answers:
                tail.answered.add(record.answers)
                tail.waiting.pop(record.answers, None)

    def moved(self, move: Move) -> None:
        """The tables have this part of the journal."""
        for session, records in move.records.items():
            tail = self.tails[session]
            if len(records) == len(tail.entries):
                del self.tails[session]
            else:
                tail.cut(records)
