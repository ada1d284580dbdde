"""Puts records of the journal into the other tables. Part of a transaction of the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from relay.models import PROMPT
from relay.store.sqlite_journal import IdRow, Move, Record
from relay.store.sqlite_mirror import Session
from relay.store.sqlite_tables import encode_entries, has_large, insert, is_large

PIECE_ENTRIES = 63
"""At most so many in one piece of a log: an integer of SQLite has a bit for each, and one for the sign."""

_ANSWERED = """
    UPDATE part SET waiting = waiting & ~(1 << (:seq - first)) WHERE session = :session AND first <= :seq
    AND last = (SELECT last FROM part WHERE session = :session AND last >= :seq ORDER BY last LIMIT 1)
"""
_MOVED_LARGE = """
    UPDATE part SET waiting = ?, floor = ?, bytes = ?, pending = ?, active_ms = ? WHERE session = ? AND last = ?
"""
_DROP_PIECES = """
    DELETE FROM piece WHERE id IN
    (SELECT piece FROM part WHERE session = :session AND last <= :floor AND last < :newest AND waiting = 0)
"""
_DROP_PARTS = "DELETE FROM part WHERE session = :session AND last <= :floor AND last < :newest AND waiting = 0"


def move_records(db: sqlite3.Connection, move: Move, sessions: Mapping[str, Session], piece: int) -> tuple[int, int]:
    """Move what is due, in pieces that come after this one, and delete the rows that are done with.

    `sessions` are as they were before this transaction. Returns the last of the pieces, and how many bytes the records
    had.
    """
    rows = _Rows(piece)
    for records in move.records:
        first = records if isinstance(records, Record) else records[0]
        if first.seq == 1:
            rows.add_session(sessions[first.session_id])
        if isinstance(records, Record):
            rows.add_single(records)
        else:
            rows.add(records, move.apart.get(first.number, 0))
    rows.add_ids(move.ids)
    rows.write(db)
    db.execute("DELETE FROM journal WHERE id <= ?", (move.row,))
    return rows.piece, rows.bytes


class _Rows:
    """What the tables are to get. Values of rows stand one after the other, see `insert`."""

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.bytes = 0
        self._sessions: list[Any] = []
        self._pieces: list[Any] = []
        self._parts: list[Any] = []
        self._large: list[Any] = []
        self._prompts: list[Any] = []
        self._responses: list[Any] = []
        self._answered: list[Any] = []
        self._dropped: list[Any] = []

    def add_session(self, session: Session) -> None:
        """A session that the tables do not have."""
        self._sessions += session.number, session.session_id, session.epoch, session.created_ms, session.active_ms

    def add(self, records: Sequence[Record], apart: int = 0) -> None:
        """Records of one session, whose ids up to the seq `apart` are added by themselves."""
        waiting = self._waiting(records)
        for record in records if apart < records[-1].seq else ():
            if record.seq > apart:
                self._add_id(record)
        self.bytes += sum([len(record.data) for record in records])
        if records[-1].floor or has_large(records):
            self._add_between(records, waiting)
            return
        for start in range(0, len(records), PIECE_ENTRIES):
            self._add_part(records[start : start + PIECE_ENTRIES], waiting)

    def add_single(self, record: Record) -> None:
        """The same for one: with many sessions most have no more than that, and it takes a third of the time."""
        if record.floor or is_large(record):
            self.add((record,))
            return
        self.bytes += len(record.data)
        session, seq, ts = record.number, record.seq, record.ts
        waits = record.kind is PROMPT
        self._add_id(record)
        if record.answers:
            self._answered.append({"session": session, "seq": record.answers})
        self.piece += 1
        self._pieces += self.piece, encode_entries((record,))
        self._parts += session, seq, seq, self.piece, ts, ts, int(waits)
        self._parts += _state(record)

    def _add_between(self, records: Sequence[Record], waiting: set[int]) -> None:
        """Those of them that are neither large, and have their parts, nor dropped."""
        newest = records[-1]
        floor = newest.floor
        start = 0  # of what has no part yet
        for number, record in enumerate(records):
            large = is_large(record)
            # The newest one tells how the log stands, even if it is dropped.
            dropped = record.seq <= floor and record.seq not in waiting and record is not newest
            if large or dropped or number - start == PIECE_ENTRIES:
                self._add_part(records[start:number], waiting)
                start = number + 1 if large or dropped else number
            if large:
                self._large.append((int(record.seq in waiting), *_state(record), record.number, record.seq))
        self._add_part(records[start:], waiting)
        if floor:
            self._dropped.append({"session": newest.number, "floor": floor, "newest": newest.seq})

    def add_ids(self, ids: Sequence[IdRow]) -> None:
        """Ids that are moved by themselves."""
        self._prompts += [value for row in ids if isinstance(row[2], int) for value in row]
        self._responses += [value for row in ids if isinstance(row[2], bytes) for value in row]

    def _waiting(self, records: Sequence[Record]) -> set[int]:
        """The seqs of the prompts among them that wait."""
        waiting: set[int] = set()
        for record in records:
            if record.kind is PROMPT:
                waiting.add(record.seq)
            elif record.answers in waiting:
                waiting.remove(record.answers)
            elif record.answers:
                self._answered.append({"session": record.number, "seq": record.answers})
        return waiting

    def _add_id(self, record: Record) -> None:
        if record.kind is PROMPT:
            self._prompts += record.number, record.message_id, record.seq
        else:
            self._responses += record.number, record.message_id, record.fingerprint

    def _add_part(self, records: Sequence[Record], waiting: set[int]) -> None:
        if not records:
            return
        first, newest = records[0].seq, records[-1]
        times = [record.ts for record in records]
        mask = sum([1 << (record.seq - first) for record in records if record.seq in waiting]) if waiting else 0
        self.piece += 1
        self._pieces += self.piece, encode_entries(records)
        self._parts += newest.number, newest.seq, first, self.piece, min(times), max(times), mask
        self._parts += _state(newest)

    def write(self, db: sqlite3.Connection) -> None:
        """Let the tables have them."""
        insert(db, "session (id, session_id, epoch, created_ms, active_ms)", self._sessions)
        insert(db, "piece (id, entries)", self._pieces)
        columns = "session, last, first, piece, min_ts, max_ts, waiting, floor, bytes, pending, active_ms"
        insert(db, f"part ({columns})", self._parts)
        # After a crash some come again: those of records that were moved, of which nobody knows whether their ids were.
        insert(db, "prompt (session, message_id, seq)", self._prompts, again=True)
        insert(db, "response (session, message_id, fingerprint)", self._responses, again=True)
        if self._large and db.executemany(_MOVED_LARGE, self._large).rowcount != len(self._large):
            raise sqlite3.IntegrityError("a large message is not where it was written")
        for statement, values in (
            (_ANSWERED, self._answered),
            (_DROP_PIECES, self._dropped),
            (_DROP_PARTS, self._dropped),
        ):
            if values:
                db.executemany(statement, values)


def _state(record: Record) -> tuple[int, int, int, int]:
    """How the log stood after this record."""
    return record.floor, record.log_bytes, record.pending, record.active_ms
