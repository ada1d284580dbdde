"""The statements that write, many rows each.

A statement of 64 rows is one step for the driver, which lets other threads run before and after each: 64 statements of
one row would be as many fights for the interpreter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from relay.models import MessageType
from relay.store.sqlite_mirror import PROMPT, Record, Session, Tail

MAX_ROWS = 64
"""At most so many in one statement."""

_LOOK_UP_ROWS = 8
"""A look-up has a multiple of so many."""

_PROMPT = MessageType.PROMPT.value
_ASSISTANT = MessageType.ASSISTANT.value

_Row = Sequence[Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Known(msgspec.Struct, frozen=True, gc=False):
    """An id that the tables have: where its message is, what it was, and whether it is a prompt that is pending."""

    session: int
    message_id: str
    seq: int
    fingerprint: bytes
    pending: int


def load_sessions(db: sqlite3.Connection) -> dict[str, Session]:
    """Every session, in the order of creation."""
    rows = db.execute(
        "SELECT id, session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms FROM session ORDER BY id"
    )
    return {row[1]: Session(*row) for row in rows}


def load_journal(db: sqlite3.Connection) -> Iterator[Record]:
    """What the journal holds, in order."""
    for [records] in db.execute("SELECT records FROM journal ORDER BY id"):
        yield from _decode(records)


def write_journal(db: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Add to the journal."""
    db.execute("INSERT INTO journal (records) VALUES (?)", (_encode(records),))


def look_up(db: sqlite3.Connection, kind: MessageType, ids: Sequence[tuple[int, str]]) -> Iterator[Known]:
    """Those of the ids, each of a session, that the tables have."""
    for first in range(0, len(ids), MAX_ROWS):
        piece = ids[first : first + MAX_ROWS]
        # Filled up with ids that nobody has: so there are few statements, and each piece is one of them.
        missing = -len(piece) % _LOOK_UP_ROWS
        values = [value for pair in piece for value in pair] + [0, ""] * missing
        for row in db.execute(_look_up_statement(kind, len(piece) + missing), values):
            yield Known(*row)


@cache
def _look_up_statement(kind: MessageType, rows: int) -> str:
    return (
        f"WITH wanted (session, message_id) AS (VALUES {','.join(['(?,?)'] * rows)})"  # noqa: S608  # our own words
        " SELECT m.session, m.message_id, m.seq, m.fingerprint,"
        " EXISTS (SELECT 1 FROM pending p WHERE p.session = m.session AND p.seq = m.seq)"
        " FROM wanted w CROSS JOIN message m"
        f" ON m.session = w.session AND m.kind = '{kind.value}' AND m.message_id = w.message_id"
    )


def entry_size(db: sqlite3.Connection, session: int, seq: int) -> int:
    """How many bytes an entry has that is in the tables."""
    [[size]] = db.execute("SELECT length(data) FROM entry WHERE session = ? AND seq = ?", (session, seq)).fetchall()
    return int(size)


def settle(db: sqlite3.Connection, sessions: Mapping[str, Session], tails: Mapping[str, Tail]) -> None:
    """Put the tails into the tables, and each of their sessions as it is now."""
    # Neighbours first to last: rows of one page then come one after another.
    changed = sorted(((sessions[session_id], tail) for session_id, tail in tails.items()), key=lambda pair: pair[0].id)
    _execute(
        db,
        "INSERT INTO entry (session, seq, kind, ts, data) VALUES {rows}",
        [
            (session.id, entry.seq, _PROMPT if entry.kind is PROMPT else _ASSISTANT, entry.ts, entry.data)
            for session, tail in changed
            for entry in tail.entries
            if entry.seq > session.floor or entry.seq in tail.waiting
        ],
    )
    _execute(
        db,
        "INSERT INTO message (session, kind, message_id, seq, fingerprint) VALUES {rows}",
        [row for session, tail in changed for row in _messages(session.id, tail)],
    )
    answered = [(session.id, seq) for session, tail in changed for seq in tail.answered if seq <= tail.start]
    db.executemany("DELETE FROM pending WHERE session = ? AND seq = ?", answered)
    _execute(
        db,
        "INSERT INTO pending (session, seq) VALUES {rows}",
        [(session.id, seq) for session, tail in changed for seq in tail.waiting],
    )
    db.executemany(
        "DELETE FROM entry WHERE session = :id AND seq <= :floor"
        " AND seq NOT IN (SELECT seq FROM pending WHERE session = :id)",
        [{"id": session.id, "floor": session.floor} for session, _ in changed if session.floor],
    )
    save_sessions(db, [session for session, _ in changed])
    db.execute("DELETE FROM journal")


def save_sessions(db: sqlite3.Connection, sessions: Sequence[Session]) -> None:
    """Put sessions into their table, over what is there of them."""
    _execute(
        db,
        "INSERT INTO session (id, session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms) VALUES {rows}"
        " ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, floor = excluded.floor,"
        " bytes = excluded.bytes, pending = excluded.pending, active_ms = excluded.active_ms",
        [msgspec.structs.astuple(session) for session in sessions],
    )


def forget_sessions(db: sqlite3.Connection, sessions: Iterable[Session]) -> None:
    """Take sessions, and everything in them, out of the tables."""
    ids = [(session.id,) for session in sessions]
    for table in ("entry", "message", "pending"):
        db.executemany(f"DELETE FROM {table} WHERE session = ?", ids)  # noqa: S608  # our own names
    db.executemany("DELETE FROM session WHERE id = ?", ids)


def _messages(session: int, tail: Tail) -> Iterator[_Row]:
    for message_id, seq in tail.prompts.items():
        yield session, _PROMPT, message_id, seq, b""
    for message_id, (seq, fingerprint) in tail.responses.items():
        yield session, _ASSISTANT, message_id, seq, fingerprint


def _execute(db: sqlite3.Connection, statement: str, rows: Sequence[_Row]) -> list[Any]:
    """Run a statement over rows, in pieces of a power of two: so there are few statements, and all stay prepared."""
    results: list[Any] = []
    done = 0
    while left := len(rows) - done:
        count = min(MAX_ROWS, 1 << (left.bit_length() - 1))
        piece = rows[done : done + count]
        row = f"({','.join('?' * len(piece[0]))})"
        values = [value for row in piece for value in row]
        results += db.execute(statement.format(rows=",".join([row] * count)), values)
        done += count
    return results
