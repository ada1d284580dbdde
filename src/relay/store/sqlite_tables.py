"""The statements of the writer's thread, and how things are packed. Moving the journal is in `sqlite_move.py`.

A statement of 64 rows is one step for the driver, which lets other threads run before and after each: 64 statements of
one row would be as many fights for the interpreter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from relay.store.base import Entry, NewEntry
from relay.store.sqlite_journal import Change, Record, Steps
from relay.store.sqlite_mirror import Session

LARGE_BYTES = 4096
"""A message of this size is a piece by itself, and is written there at once: the journal only says that it came. So
this is part of the file's format: with another value, what is in the journal could not be moved."""

MAX_ROWS = 64
"""At most so many in one statement."""

_LOOK_UP_ROWS = 8
"""A look-up has a multiple of so many."""

_encoder = msgspec.msgpack.Encoder()
_decode_steps = msgspec.msgpack.Decoder(Steps).decode
decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode
"""Those of a piece."""


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """A piece: of a record only what makes it an entry."""
    return _encoder.encode([(entry.seq, entry.kind, entry.ts, entry.data) for entry in entries])


def is_large(message: Entry | NewEntry) -> bool:
    """Whether it is a piece by itself."""
    return len(message.data) >= LARGE_BYTES


def has_large(records: Sequence[Record]) -> bool:
    """Whether one of them is."""
    return max([len(record.data) for record in records]) >= LARGE_BYTES


# Starting


def load_sessions(db: sqlite3.Connection) -> Iterator[Session]:
    """Every session, as the tables have it."""
    columns = "id, session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms"
    return (Session(*row) for row in db.execute(f"SELECT {columns} FROM known"))  # noqa: S608  # our own names


def load_journal(db: sqlite3.Connection) -> Iterator[tuple[int, Steps]]:
    """The rows of the journal, in order. The data of large messages are elsewhere."""
    for row, steps in db.execute("SELECT id, steps FROM journal ORDER BY id"):
        yield row, _decode_steps(steps)


def load_large(db: sqlite3.Connection, record: Record) -> Record:
    """The record, with the data that the journal has not."""
    if record.data:
        return record
    query = "SELECT entries FROM piece WHERE id = (SELECT piece FROM part WHERE session = ? AND last = ?)"
    [[entries]] = db.execute(query, (record.number, record.seq)).fetchall()
    return replace(record, data=decode_entries(entries)[0].data)


def last_piece(db: sqlite3.Connection) -> int:
    """The highest id of a piece."""
    [[last]] = db.execute("SELECT ifnull(max(id), 0) FROM piece")
    return int(last)


# Keeping


def write_journal(db: sqlite3.Connection, row: int, steps: Steps) -> None:
    """Add a row to the journal."""
    db.execute("INSERT INTO journal (id, steps) VALUES (?, ?)", (row, _encoder.encode(steps)))


def without_large(records: Sequence[Record]) -> list[Record]:
    """The records as the journal has them."""
    return [replace(record, data=b"") if is_large(record) else record for record in records]


def write_large(db: sqlite3.Connection, records: Iterable[Record], piece: int) -> int:
    """Give each large message its place, in pieces that come after this one; returns the last of them."""
    pieces: list[Any] = []
    parts: list[Any] = []
    for record in records:
        if is_large(record):
            piece += 1
            pieces += piece, encode_entries([record])
            parts += record.number, record.seq, record.seq, piece, record.ts, record.ts, 0
    insert(db, "piece (id, entries)", pieces)
    insert(db, "part (session, last, first, piece, min_ts, max_ts, waiting)", parts)
    return piece


def look_up_prompts(db: sqlite3.Connection, ids: Sequence[Any]) -> Iterator[tuple[int, str, int, int]]:
    """Those of the ids that the tables have: session, message_id, seq and whether it is pending.

    The ids are given as session, message_id, session, message_id, …
    """
    # Only the first part that ends behind it can have it. If it was dropped none has, and to shift by less than nothing
    # shifts the other way: the answer is 0.
    pending = (
        "(SELECT waiting >> (m.seq - first) & 1 FROM part"
        " WHERE session = m.session AND last >= m.seq ORDER BY last LIMIT 1)"
    )
    return _look_up(db, f"m.seq, {pending} FROM wanted w CROSS JOIN prompt m", ids)


def look_up_responses(db: sqlite3.Connection, ids: Sequence[Any]) -> Iterator[tuple[int, str, bytes]]:
    """Those of the ids, given in the same way, that the tables have: session, message_id and fingerprint."""
    return _look_up(db, "m.fingerprint FROM wanted w CROSS JOIN response m", ids)


def _look_up(db: sqlite3.Connection, what: str, ids: Sequence[Any]) -> Iterator[Any]:
    for first in range(0, len(ids), 2 * MAX_ROWS):
        values = list(ids[first : first + 2 * MAX_ROWS])
        # Filled up with ids that nobody has: so there are few statements, and each stays prepared.
        values += [0, ""] * (-(len(values) // 2) % _LOOK_UP_ROWS)
        yield from db.execute(_look_up_statement(what, len(values) // 2), values)


@cache
def _look_up_statement(what: str, rows: int) -> str:
    return (
        f"WITH wanted (session, message_id) AS (VALUES {','.join(['(?,?)'] * rows)})"
        f" SELECT m.session, m.message_id, {what} ON m.session = w.session AND m.message_id = w.message_id"
    )


def entry_sizes(db: sqlite3.Connection, session: int, seq: int) -> tuple[int, Sequence[int]]:
    """How many bytes each entry has of the part that holds this one, and the seq of the first of them."""
    query = (
        "SELECT first, entries FROM part JOIN piece ON piece.id = piece"
        " WHERE session = ? AND last >= ? ORDER BY last LIMIT 1"
    )
    [[first, entries]] = db.execute(query, (session, seq)).fetchall()
    return first, [len(entry.data) for entry in decode_entries(entries)]


# Sessions


def change_sessions(db: sqlite3.Connection, changes: Iterable[Change]) -> None:
    """Let sessions be as given, in so far as the tables have them."""
    rows = [(change.epoch, change.active_ms, change.session) for change in changes]
    db.executemany("UPDATE session SET epoch = ?, active_ms = ? WHERE id = ?", rows)


def forget_sessions(db: sqlite3.Connection, sessions: Iterable[Session]) -> None:
    """Take sessions, and everything in them, out of the tables."""
    ids = [(session.number,) for session in sessions]
    db.executemany("DELETE FROM piece WHERE id IN (SELECT piece FROM part WHERE session = ?)", ids)
    for table in ("part", "prompt", "response"):
        db.executemany(f"DELETE FROM {table} WHERE session = ?", ids)  # noqa: S608  # our own names
    db.executemany("DELETE FROM session WHERE id = ?", ids)


def insert(db: sqlite3.Connection, into: str, values: Sequence[Any], *, again: bool = False) -> None:
    """Insert rows, whose values are given one after the other, into a table with these columns.

    Rows that are there are an error unless they may come again. In pieces of a power of two: so there are few
    statements, and all stay prepared.
    """
    width = into.count(",") + 1
    done = 0
    while left := len(values) // width - done:
        count = min(MAX_ROWS, 1 << (left.bit_length() - 1))
        db.execute(_insertion(into, width, count, again=again), values[done * width : (done + count) * width])
        done += count


@cache
def _insertion(into: str, width: int, rows: int, *, again: bool) -> str:
    row = f"({','.join('?' * width)})"
    return f"INSERT {'OR IGNORE ' if again else ''}INTO {into} VALUES {','.join([row] * rows)}"  # noqa: S608  # our own names
