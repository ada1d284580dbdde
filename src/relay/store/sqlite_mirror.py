"""What is committed, in memory and for readers: each session's row, and the messages that are in the journal only.

The event loop changes it, after a commit and while the writer's thread is idle; both may read it. (Two things are noted
when they are asked for, at any time: what waits in a tail, at which the thread never looks, and a session's
`answered_to`, of which any older value is as good.) It is bounded: a row for each session, of which there are at most
`max_sessions`, and what `Journal` lets the journal hold.
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
    answered_to: int = 0
    """No prompt up to this seq is pending. Noted by a look into the tables for those that are: the next begins there.
    So no index has to be kept up to date for each message. A note may get lost in a write of the same moment."""


class Tail(msgspec.Struct, gc=False):
    """The end of a session's log that the tables do not have: the entries after seq `start`."""

    start: int
    records: list[Record] = []
    """One for each entry."""
    answered: set[int] | None = None
    """The prompts, of the tables too, whose wait an entry of this tail has ended; if there is any."""
    known_waiting: dict[int, Entry] | None = None
    """See `waiting`."""

    @property
    def waiting(self) -> dict[int, Entry]:
        """The prompts that are pending, by seq. Found when they are first asked for: many a tail goes unread."""
        if self.known_waiting is None:
            answered = self.answered or ()
            entries = [record.entry for record in self.records]
            self.known_waiting = {
                entry.seq: entry for entry in entries if entry.kind is PROMPT and entry.seq not in answered
            }
        return self.known_waiting

    def add(self, record: Record) -> None:
        """It has a further entry."""
        entry, answers, waiting = record.entry, record.answers, self.known_waiting
        self.records.append(record)
        if answers:
            self.answered = self.answered or set()
            self.answered.add(answers)
            if waiting is not None:
                waiting.pop(answers, None)
        elif waiting is not None and entry.kind is PROMPT:
            waiting[entry.seq] = entry

    def after(self, seq: int, limit: int) -> list[Entry]:
        """Its entries after `seq`, at most `limit`."""
        first = max(0, seq - self.start)
        return [record.entry for record in self.records[first : first + limit]]

    def cut(self, count: int) -> None:
        """The tables have its first entries."""
        moved = self.records[:count]
        del self.records[:count]
        self.start += count
        if self.known_waiting is not None:
            for record in moved:
                self.known_waiting.pop(record.entry.seq, None)
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
            tail = tails.get(record.session)
            if tail is None:
                tails[record.session] = Tail(
                    record.entry.seq - 1, [record], {record.answers} if record.answers else None
                )
            else:
                tail.add(record)

    def moved(self, move: Move) -> None:
        """The tables have this part of the journal."""
        tails = self.tails
        for session, records in move.records.items():
            tail = tails[session]
            if len(records) == len(tail.records):
                del tails[session]
            else:
                tail.cut(len(records))
