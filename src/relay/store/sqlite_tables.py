"""The statements that write, and how things are packed.

A statement of 64 rows is one step for the driver, which lets other threads run before and after each: 64 statements of
one row would be as many fights for the interpreter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from relay.store.base import Entry, NewEntry
from relay.store.sqlite_journal import PROMPT, Change, Move, Record, Steps
from relay.store.sqlite_mirror import Session, Tail

PIECE_ENTRIES = 64
"""At most so many in one piece of a log."""

LARGE_BYTES = 4096
"""A message of this size is a piece by itself, and is written there at once: the journal only says that it came."""

MAX_ROWS = 64
"""At most so many in one statement."""

_LOOK_UP_ROWS = 8
"""A look-up has a multiple of so many."""

_Row = Sequence[Any]

_encode = msgspec.msgpack.Encoder().encode
_decode_steps = msgspec.msgpack.Decoder(Steps).decode
decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode
"""Those of a piece."""


def is_large(message: Entry | NewEntry) -> bool:
    """Whether it is a piece by itself."""
    return len(message.data) >= LARGE_BYTES


# Starting


def load_sessions(db: sqlite3.Connection) -> Iterator[Session]:
    """Every session, as the tables have it."""
    rows = db.execute("SELECT id, session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms FROM session")
    return (Session(*row) for row in rows)


def load_journal(db: sqlite3.Connection) -> Iterator[tuple[int, Steps]]:
    """The rows of the journal, in order. The data of large messages are elsewhere."""
    for row, steps in db.execute("SELECT id, steps FROM journal ORDER BY id"):
        yield row, _decode_steps(steps)


def load_large(db: sqlite3.Connection, record: Record) -> Record:
    """The record, with the data that the journal has not."""
    if record.new.data:
        return record
    place = (record.session, record.seq)
    [[entries]] = db.execute("SELECT entries FROM piece WHERE session = ? AND last = ?", place).fetchall()
    return replace(record, new=replace(record.new, data=decode_entries(entries)[0].data))


# Keeping


def write_journal(db: sqlite3.Connection, row: int, steps: Steps) -> None:
    """Add a row to the journal."""
    db.execute("INSERT INTO journal (id, steps) VALUES (?, ?)", (row, _encode(steps)))


def without_large(records: Sequence[Record]) -> list[Record]:
    """The records as the journal has them."""
    return [
        replace(record, new=replace(record.new, data=b"")) if is_large(record.new) else record for record in records
    ]


def write_large(db: sqlite3.Connection, records: Iterable[Record], entries: Iterable[Entry]) -> None:
    """Give each large message its place in the log."""
    pairs = zip(records, entries, strict=True)
    _insert_pieces(db, [_piece(record.session, [entry]) for record, entry in pairs if is_large(entry)])


def look_up_prompts(db: sqlite3.Connection, ids: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, int, int]]:
    """Those of the ids that the tables have: session, message_id, seq and whether it is pending."""
    what = "m.seq, EXISTS (SELECT 1 FROM pending p WHERE p.session = m.session AND p.seq = m.seq) FROM"
    return _look_up(db, f"{what} wanted w CROSS JOIN prompt m", ids)


def look_up_responses(db: sqlite3.Connection, ids: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
    """Those of the ids that the tables have: session, message_id and fingerprint."""
    return _look_up(db, "m.fingerprint FROM wanted w CROSS JOIN response m", ids)


def _look_up(db: sqlite3.Connection, what: str, ids: Sequence[tuple[int, str]]) -> Iterator[Any]:
    for first in range(0, len(ids), MAX_ROWS):
        piece = ids[first : first + MAX_ROWS]
        # Filled up with ids that nobody has: so there are few statements, and each stays prepared.
        missing = -len(piece) % _LOOK_UP_ROWS
        values = [value for pair in piece for value in pair] + [0, ""] * missing
        yield from db.execute(_look_up_statement(what, len(piece) + missing), values)


@cache
def _look_up_statement(what: str, rows: int) -> str:
    return (
        f"WITH wanted (session, message_id) AS (VALUES {','.join(['(?,?)'] * rows)})"
        f" SELECT m.session, m.message_id, {what} ON m.session = w.session AND m.message_id = w.message_id"
    )


def piece_sizes(db: sqlite3.Connection, session: int, seq: int) -> tuple[int, Sequence[int]]:
    """How many bytes each entry has of the piece that holds this one, and the seq of the first of them."""
    query = "SELECT first, entries FROM piece WHERE session = ? AND last >= ? ORDER BY last LIMIT 1"
    [[first, entries]] = db.execute(query, (session, seq)).fetchall()
    return first, [len(entry.data) for entry in decode_entries(entries)]


# Moving


def move_records(
    db: sqlite3.Connection, move: Move, sessions: Mapping[str, Session], tails: Mapping[int, Tail]
) -> None:
    """Put records of the journal into the other tables, and delete the rows that are done with."""
    lasts = [records[-1] for records in move.records.values()]
    pieces: list[_Row] = []
    prompts: list[_Row] = []
    responses: list[_Row] = []
    pending: list[_Row] = []
    answered: list[_Row] = []
    for session, records in move.records.items():
        waiting: set[int] = set()
        for record in records:
            new = record.new
            if new.kind is PROMPT:
                prompts.append((session, new.message_id, record.seq))
                waiting.add(record.seq)
            else:
                responses.append((session, new.message_id, new.fingerprint))
                if record.answers in waiting:
                    waiting.remove(record.answers)
                elif record.answers:
                    answered.append((session, record.answers))
        pending += [(session, seq) for seq in sorted(waiting)]
        entries = tails[session].entries[: len(records)]
        pieces += _pieces(session, entries, records[-1].floor, waiting)
    _insert_pieces(db, pieces)
    _execute(db, "INSERT INTO prompt (session, message_id, seq) VALUES {rows}", prompts)
    _execute(db, "INSERT INTO response (session, message_id, fingerprint) VALUES {rows}", responses)
    db.executemany("DELETE FROM pending WHERE session = ? AND seq = ?", answered)
    _execute(db, "INSERT INTO pending (session, seq) VALUES {rows}", pending)
    _save_sessions(db, [_as_of(record, sessions[record.new.session_id]) for record in lasts])
    _delete_dropped(db, lasts)
    db.execute("DELETE FROM journal WHERE id <= ?", (move.row,))


def _pieces(session: int, entries: Iterable[Entry], floor: int, waiting: set[int]) -> Iterator[_Row]:
    """Entries packed, without those that are dropped already or have their place."""
    piece: list[Entry] = []
    for entry in entries:
        if is_large(entry) or (entry.seq <= floor and entry.seq not in waiting):
            if piece:
                yield _piece(session, piece)
                piece = []
            continue
        piece.append(entry)
        if len(piece) == PIECE_ENTRIES:
            yield _piece(session, piece)
            piece = []
    if piece:
        yield _piece(session, piece)


def _piece(session: int, entries: Sequence[Entry]) -> _Row:
    times = [entry.ts for entry in entries]
    return session, entries[0].seq, entries[-1].seq, min(times), max(times), _encode(entries)


def _insert_pieces(db: sqlite3.Connection, pieces: Sequence[_Row]) -> None:
    _execute(db, "INSERT INTO piece (session, first, last, min_ts, max_ts, entries) VALUES {rows}", pieces)


def _as_of(record: Record, session: Session) -> Session:
    """The session as the record left it."""
    return replace(session, seq=record.seq, floor=record.floor, bytes=record.bytes, pending=record.pending)


def _save_sessions(db: sqlite3.Connection, sessions: Sequence[Session]) -> None:
    _execute(
        db,
        "INSERT INTO session (id, session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms) VALUES {rows}"
        " ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, floor = excluded.floor,"
        " bytes = excluded.bytes, pending = excluded.pending, active_ms = excluded.active_ms",
        [msgspec.structs.astuple(session) for session in sessions],
    )


def _delete_dropped(db: sqlite3.Connection, lasts: Iterable[Record]) -> None:
    """Delete the pieces below the floor that these records left."""
    db.executemany(
        "DELETE FROM piece WHERE session = :session AND last <= :floor AND NOT EXISTS"
        " (SELECT 1 FROM pending p WHERE p.session = :session AND p.seq BETWEEN first AND last)",
        [{"session": record.session, "floor": record.floor} for record in lasts if record.floor],
    )


# Sessions


def change_sessions(db: sqlite3.Connection, changes: Iterable[Change]) -> None:
    """Let sessions be as given, in so far as the tables have them."""
    rows = [(change.epoch, change.active_ms, change.session) for change in changes]
    db.executemany("UPDATE session SET epoch = ?, active_ms = ? WHERE id = ?", rows)


def forget_sessions(db: sqlite3.Connection, sessions: Iterable[Session]) -> None:
    """Take sessions, and everything in them, out of the tables."""
    ids = [(session.id,) for session in sessions]
    for table in ("piece", "prompt", "response", "pending"):
        db.executemany(f"DELETE FROM {table} WHERE session = ?", ids)  # noqa: S608  # our own names
    db.executemany("DELETE FROM session WHERE id = ?", ids)


def _execute(db: sqlite3.Connection, statement: str, rows: Sequence[_Row]) -> None:
    """Run a statement over rows, in pieces of a power of two: so there are few statements, and all stay prepared."""
    done = 0
    while left := len(rows) - done:
        count = min(MAX_ROWS, 1 << (left.bit_length() - 1))
        piece = rows[done : done + count]
        row = f"({','.join('?' * len(piece[0]))})"
        db.execute(statement.format(rows=",".join([row] * count)), [value for row in piece for value in row])
        done += count
