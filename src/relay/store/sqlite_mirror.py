"""What is committed, in memory and for readers: each session's row, and the messages that are in the journal only.

The event loop changes it, after a commit and while the writer's thread is idle; both may read it. (Two things are noted
when they are asked for, at any time: what waits in a tail, at which the thread never looks, and a session's
`answered_to`, of which any older value is as good.) It is bounded: a row for each session, of which there are at most
`max_sessions`, and what `Journal` lets the journal hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from relay.models import PROMPT
from relay.store.base import Entry
from relay.store.sqlite_journal import Move, Record


class Session(msgspec.Struct, gc=False):
    """What is known of a session, with all that the journal says of it."""

    number: int
    session_id: str
    epoch: str
    seq: int
    floor: int
    log_bytes: int
    pending: int
    created_ms: int
    active_ms: int
    answered_to: int = 0
    """No prompt up to this seq is pending. Noted by a look into the tables for those that are: the next begins there.
    So no index has to be kept up to date for each message. A note may get lost when a step changes the session."""

    def follow(self, record: Record) -> None:
        """The session stands as this record says."""
        self.seq = record.seq
        self.floor = record.floor
        self.log_bytes = record.log_bytes
        self.pending = record.pending
        self.active_ms = record.active_ms


class Tail(msgspec.Struct, frozen=True, gc=False):
    """The end of a session's log that the tables do not have, as it is at the moment: the entries after seq `start`."""

    start: int
    records: Sequence[Record]
    """One for each entry."""

    def after(self, seq: int, limit: int) -> list[Entry]:
        """Its entries after `seq`, at most `limit`."""
        first = max(0, seq - self.start)
        return list(self.records[first : first + limit])


class Waiting(msgspec.Struct):
    """What a tail says of the prompts that are pending."""

    prompts: dict[int, Entry] = {}
    """Those in it, by seq."""
    answered: set[int] = set()
    """Those, of the tables too, whose wait it has ended."""

    def add(self, record: Record) -> None:
        """The tail has a further entry."""
        if record.kind is PROMPT:
            self.prompts[record.seq] = record
        elif record.answers:
            self.prompts.pop(record.answers, None)
            self.answered.add(record.answers)

    def cut(self, moved: Iterable[Record]) -> None:
        """The tables have its first entries."""
        for record in moved:
            self.prompts.pop(record.seq, None)
            self.answered.discard(record.answers)


class Mirror:
    """The committed state."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        """In the order of their creation."""
        self.tails: dict[int, Record | list[Record]] = {}
        """By the session's number. One record may be there by itself: with many sessions most are alone, and a list
        around each is one thing more to be fetched into the processor's caches, at every look."""
        self.next_id = 1
        self._waiting: dict[int, Waiting] = {}  # of the lists that were asked for it: many a one goes unread

    def tail(self, session: Session) -> Tail:
        """The session's tail; an empty one if the tables have everything."""
        records = self.records(session.number)
        return Tail(session.seq - len(records), records)

    def records(self, number: int) -> Sequence[Record]:
        """Those of the session's tail."""
        tail = self.tails.get(number, ())
        return (tail,) if isinstance(tail, Record) else tail

    def waiting(self, session: Session) -> Waiting:
        """What the tail says of its pending prompts."""
        waiting = self._waiting.get(session.number)
        if waiting is None:
            waiting = Waiting()
            records = self.records(session.number)
            for record in records:
                waiting.add(record)
            if isinstance(records, list):  # else it is soon found again
                self._waiting[session.number] = waiting
        return waiting

    def change(self, sessions: Mapping[str, Session | None]) -> None:
        """Sessions are now as given, new ones in the order of their creation; None are gone."""
        for session_id, session in sessions.items():
            if session is not None:
                self.sessions[session_id] = session
            elif gone := self.sessions.pop(session_id, None):
                self.tails.pop(gone.number, None)
                self._waiting.pop(gone.number, None)

    def add(self, records: Collection[Record]) -> None:
        """The journal has these records too, and the logs their entries."""
        tails = self.tails
        for record in records:
            tail = tails.get(record.number)
            if tail is None:
                tails[record.number] = record
            elif isinstance(tail, Record):
                tails[record.number] = [tail, record]
            else:
                tail.append(record)
        if self._waiting:
            for record in records:
                if waiting := self._waiting.get(record.number):
                    waiting.add(record)

    def moved(self, move: Move) -> None:
        """The tables have this part of the journal."""
        tails = self.tails
        for moved in move.records:
            if isinstance(moved, Record):
                del tails[moved.number]
            else:
                self._cut(moved)

    def _cut(self, moved: Sequence[Record]) -> None:
        """The tables have the first records of a tail, of which there were several."""
        number = moved[0].number
        tail = self.tails[number]
        if isinstance(tail, list) and len(tail) > len(moved):
            del tail[: len(moved)]
            if known := self._waiting.get(number):
                known.cut(moved)
        else:
            del self.tails[number]
            self._waiting.pop(number, None)
