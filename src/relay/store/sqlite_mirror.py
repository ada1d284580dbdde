"""What is committed, in memory and for readers: each session's row, and the messages that are in the journal only.

The event loop changes it, after a commit and while the writer's thread is idle; both may read it. It is bounded: a row
for each session, of which there are at most `max_sessions`, and what `Journal` lets the journal hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from relay.models import PROMPT
from relay.store.base import Entry
from relay.store.sqlite_journal import Move, Record


class Session(msgspec.Struct, gc=False):
    """What is known of a session, with all that the journal says of it."""

    id: int
    session_id: str
    epoch: str
    seq: int
    floor: int
    bytes: int
    pending: int
    created_ms: int
    active_ms: int


class Tail(msgspec.Struct, gc=False):
    """The end of a session's log that the tables do not have: the entries after seq `start`."""

    start: int
    records: list[Record] = []
    """One for each entry."""
    waiting: dict[int, Entry] = {}
    """The prompts that are pending, by seq."""
    answered: set[int] | None = None
    """The prompts, of the tables too, whose wait an entry of this tail has ended; if there is any."""

    def after(self, seq: int, limit: int) -> list[Entry]:
        """Its entries after `seq`, at most `limit`."""
        first = max(0, seq - self.start)
        return [record.entry for record in self.records[first : first + limit]]

    def cut(self, count: int) -> None:
        """The tables have its first entries."""
        moved = self.records[:count]
        del self.records[:count]
        self.start += count
        for record in moved:
            self.waiting.pop(record.entry.seq, None)
        if self.answered is not None:
            self.answered -= {record.answers for record in moved}


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

    def add(self, records: Iterable[Record]) -> None:
        """The journal has these records too, and the logs their entries."""
        tails = self.tails
        for record in records:
            entry, answers = record.entry, record.answers
            tail = tails.get(record.session)
            if tail is None:
                tail = tails[record.session] = Tail(entry.seq - 1)
            tail.records.append(record)
            if entry.kind is PROMPT:
                tail.waiting[entry.seq] = entry
            elif answers:
                tail.answered = tail.answered or set()
                tail.answered.add(answers)
                tail.waiting.pop(answers, None)

    def moved(self, move: Move) -> None:
        """The tables have this part of the journal."""
        tails = self.tails
        for session, records in move.records.items():
            tail = tails[session]
            if len(records) == len(tail.records):
                del tails[session]
            else:
                tail.cut(len(records))
