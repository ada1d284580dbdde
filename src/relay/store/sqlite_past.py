"""What an earlier process has left in the file: the tables, and what came after them, in the journal.

Rows of the journal are deleted oldest first, and some time after they were moved. So a record may be of a past that the
tables already know, but whatever came after it is in the journal too: to go through all of it ends at what was last.
Only the ids of such a record may be missing there.
"""

from __future__ import annotations

import sqlite3

from relay.store.sqlite_journal import Change, Ids, Journal, Record
from relay.store.sqlite_mirror import Mirror, Session
from relay.store.sqlite_seen import Seen
from relay.store.sqlite_tables import last_piece, load_journal, load_large, load_sessions


class Past:
    """The state that was committed last. Raises whatever comes of reading a file that is damaged."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._sessions = {session.number: session for session in load_sessions(db)}
        self._records: dict[int, list[Record]] = {}  # those that the tables do not have, by session
        self._moved: dict[int, list[Record]] = {}  # the others
        self._next_id = max(self._sessions, default=0) + 1
        self._last_row = 0
        self._sizes: list[int] = []  # of the rows
        self._changes = 0
        self._last_piece = last_piece(db)
        for row, steps in load_journal(db):
            self._last_row = row
            self._sizes.append(len(steps.records) + len(steps.changes))
            for record in steps.records:
                self._keep(record)
            for change in steps.changes:
                self._change(change)
            self._changes += len(steps.changes)
        for records in self._records.values():
            records[:] = [load_large(db, record) for record in records]

    def restore(self, mirror: Mirror, journal: Journal) -> None:
        """Let both be as they were. Called on the event loop, while the writer's thread is idle."""
        mirror.change({session.session_id: session for _, session in sorted(self._sessions.items())})
        mirror.next_id = self._next_id
        journal.last_piece = self._last_piece
        journal.seen = Seen(self._next_id)
        journal.restore(self._last_row, self._sizes, self._changes, self._moved)
        for records in self._records.values():
            mirror.add(records)
            ids = Ids()
            ids.add(records)
            journal.add(journal.last_row, records, ids, changes=0)

    def _keep(self, record: Record) -> None:
        self._next_id = max(self._next_id, record.number + 1)
        seq, active_ms = record.seq, record.active_ms
        if seq == 1 and record.number not in self._sessions:
            first = Session(record.number, record.session_id, record.epoch, 0, 0, 0, 0, active_ms, active_ms)
            self._sessions[record.number] = first
        session = self._sessions.get(record.number)
        if session is None:
            return  # it is gone
        if seq <= session.seq:
            self._moved.setdefault(record.number, []).append(record)
            return
        active_ms = max(session.active_ms, active_ms)
        session.follow(record)
        session.active_ms = active_ms
        self._records.setdefault(record.number, []).append(record)

    def _change(self, change: Change) -> None:
        self._next_id = max(self._next_id, change.session + 1)  # no id is used twice in one journal
        session = self._sessions.get(change.session)
        if change.gone:
            self._sessions.pop(change.session, None)
            self._records.pop(change.session, None)
        elif session is not None:
            session.epoch = change.epoch
            session.active_ms = max(session.active_ms, change.active_ms)
