"""One file on disk, for one process that must survive a restart or a power cut.

Nothing is acknowledged before it is committed with `synchronous=FULL`. One thread writes, in groups; readers have
connections of their own and never wait for it. The schema is in `sql/`.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from relay.errors import PromptNotFound, SessionNotFound, StoreUnavailable
from relay.models import MAX_TEXT_BYTES, MessageType, Number
from relay.store.base import (
    Entry,
    HistoryPage,
    Listener,
    LogPage,
    NewEntry,
    Outcome,
    Position,
    SessionRecord,
    SessionRecordPage,
    StoreLimits,
)
from relay.store.local import LocalCommons
from relay.store.sqlite_file import BUSY_SECONDS, FileLock, connect, prepare
from relay.store.sqlite_writer import GroupWriter

READERS = 2
"""Connections that read; each has a thread."""

T = TypeVar("T")
_Kept = tuple[Outcome, str, Entry | None]
"""What became of an entry, the epoch, and the entry if it is new."""

# seq is dense above the floor: where a page begins is known without counting the rows before it.
_HISTORY = """
    SELECT e.seq, e.kind, e.ts, e.data, s.seq - s.floor
    FROM session s LEFT JOIN entry e ON e.session = s.id AND e.seq > s.floor + :offset
    WHERE s.session_id = :session_id ORDER BY e.seq LIMIT :limit
"""
_HISTORY_SINCE = """
    WITH s AS (SELECT id, floor FROM session WHERE session_id = :session_id),
         e AS (SELECT entry.* FROM s JOIN entry ON session = s.id AND seq > s.floor AND ts > :since)
    SELECT p.seq, p.kind, p.ts, p.data, (SELECT count(*) FROM e)
    FROM s LEFT JOIN (SELECT * FROM e ORDER BY seq LIMIT :limit OFFSET :offset) p ORDER BY p.seq
"""
_SESSION = "SELECT id, epoch, seq, floor, bytes, pending FROM session WHERE session_id = ?"


class SqliteStore(LocalCommons):
    """See `Store` for what it promises. One process owns the file, so what instances agree on is not in it."""

    def __init__(
        self,
        path: Path,
        limits: StoreLimits,
        *,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(4),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._path = path
        self._limits = limits
        self._new_epoch = new_epoch
        self._max_messages = limits.log_messages
        self._max_bytes = limits.log_bytes
        self._lock = FileLock(path)
        self._sessions = 0  # how many there are; only the writer's thread touches it
        self._readers: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._writer: GroupWriter
        self._listener: Listener

    async def open(self, listener: Listener) -> None:
        self._listener = listener
        self._lock.acquire()
        try:
            await asyncio.to_thread(prepare, self._path)
        except BaseException:
            self._lock.release()
            raise
        self._writer = GroupWriter(connect(self._path), self._count_sessions)
        self._writer.start()
        await self._writer.submit(self._count_sessions)
        uri = self._path.absolute().as_uri() + "?mode=ro"
        for _ in range(READERS):
            self._readers.put_nowait(await aiosqlite.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None))

    async def close(self) -> None:
        await self._writer.close()
        while not self._readers.empty():
            await self._readers.get_nowait().close()
        self._lock.release()

    async def check(self) -> None:
        if not self._writer.healthy:
            await self._writer.submit(_probe)

    # Writing

    async def add_prompt(self, entry: NewEntry) -> Outcome:
        return (await self._keep(lambda db: self._add_prompt(db, entry), entry.session_id))[0]

    async def add_response(self, entry: NewEntry) -> Outcome:
        return (await self._keep(lambda db: self._add_response(db, entry), entry.session_id))[0]

    def _keep(self, step: Callable[[sqlite3.Connection], _Kept], session_id: str) -> asyncio.Future[_Kept]:
        def announce(kept: _Kept) -> None:
            _, epoch, entry = kept
            if entry is not None:
                self._listener.entry_added(session_id, epoch, entry)

        return self._writer.submit(step, announce)

    def _add_prompt(self, db: sqlite3.Connection, new: NewEntry) -> _Kept:
        row = db.execute(_SESSION, (new.session_id,)).fetchone()
        if row is None:
            row = self._create(db, new)
        else:
            if _known(db, row[0], MessageType.PROMPT, new.message_id):
                return Outcome.DUPLICATE, row[1], None
            if row[5] >= self._limits.max_pending_per_session:
                raise self._limits.too_many_pending()
        db.execute("INSERT INTO pending (session, seq) VALUES (?, ?)", (row[0], row[2] + 1))
        return Outcome.KEPT, row[1], self._append(db, row, new, pending=row[5] + 1)

    def _add_response(self, db: sqlite3.Connection, new: NewEntry) -> _Kept:
        row = db.execute(_SESSION, (new.session_id,)).fetchone()
        if row is None:
            raise SessionNotFound
        session, epoch, _, floor, _, pending = row
        if known := _known(db, session, MessageType.ASSISTANT, new.message_id):
            return (Outcome.DUPLICATE if known[1] == new.fingerprint else Outcome.CONFLICT), epoch, None
        prompt = _known(db, session, MessageType.PROMPT, new.client_msg_id)
        if prompt is None:
            raise PromptNotFound
        answered = db.execute("DELETE FROM pending WHERE session = ? AND seq = ?", (session, prompt[0])).rowcount
        if answered and prompt[0] <= floor:  # it was held only because it was pending
            db.execute("DELETE FROM entry WHERE session = ? AND seq = ?", (session, prompt[0]))
        return Outcome.KEPT, epoch, self._append(db, row, new, pending=pending - answered)

    def _create(self, db: sqlite3.Connection, new: NewEntry) -> tuple[Any, ...]:
        if self._sessions >= self._limits.max_sessions:
            raise self._limits.too_many_sessions()
        self._sessions += 1
        epoch = self._new_epoch()
        created = db.execute(
            "INSERT INTO session (session_id, epoch, seq, floor, bytes, pending, created_ms, active_ms)"
            " VALUES (?, ?, 0, 0, 0, 0, ?, ?)",
            (new.session_id, epoch, new.now_ms, new.now_ms),
        )
        return created.lastrowid, epoch, 0, 0, 0, 0

    def _append(self, db: sqlite3.Connection, row: tuple[Any, ...], new: NewEntry, *, pending: int) -> Entry:
        session, _, seq, floor, size, _ = row
        entry = Entry(seq + 1, new.kind, new.ts, new.data)
        db.execute(
            "INSERT INTO entry (session, seq, kind, ts, data) VALUES (?, ?, ?, ?, ?)",
            (session, entry.seq, new.kind.value, new.ts, new.data),
        )
        db.execute(
            "INSERT INTO message (session, kind, message_id, seq, fingerprint) VALUES (?, ?, ?, ?, ?)",
            (session, new.kind.value, new.message_id, entry.seq, new.fingerprint),
        )
        size += len(new.data)
        while entry.seq - floor > self._max_messages or size > self._max_bytes:
            floor += 1
            size -= _drop(db, session, floor)
        db.execute(
            "UPDATE session SET seq = ?, floor = ?, bytes = ?, pending = ?, active_ms = max(active_ms, ?) WHERE id = ?",
            (entry.seq, floor, size, pending, new.now_ms, session),
        )
        return entry

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        def step(db: sqlite3.Connection) -> None:
            if db.execute(_SESSION, (session_id,)).fetchone() is None:
                raise SessionNotFound
            change = "UPDATE session SET epoch = ? WHERE session_id = ? AND epoch = ?"
            db.execute(change, (self._new_epoch(), session_id, epoch))

        await self._writer.submit(step)

    async def touch(self, used_ms: Mapping[str, int]) -> None:
        rows = [(at_ms, session_id) for session_id, at_ms in used_ms.items()]
        change = "UPDATE session SET active_ms = max(active_ms, ?) WHERE session_id = ?"
        if rows:
            await self._writer.submit(lambda db: db.executemany(change, rows) and None)

    async def delete_session(self, session_id: str) -> None:
        def step(db: sqlite3.Connection) -> None:
            row = db.execute(_SESSION, (session_id,)).fetchone()
            if row is None:
                raise SessionNotFound
            self._forget(db, row[0])

        await self._writer.submit(step, lambda _: self._listener.session_deleted(session_id))

    async def collect_idle(self, idle_since_ms: int, *, keep: Collection[str]) -> Sequence[str]:
        def step(db: sqlite3.Connection) -> list[str]:
            query = "SELECT id, session_id FROM session WHERE active_ms <= ? AND pending = 0 ORDER BY id"
            idle = [row for row in db.execute(query, (idle_since_ms,)).fetchall() if row[1] not in keep]
            for session, _ in idle:
                self._forget(db, session)
            return [session_id for _, session_id in idle]

        def announce(collected: list[str]) -> None:
            for session_id in collected:
                self._listener.session_deleted(session_id)

        return await self._writer.submit(step, announce)

    def _forget(self, db: sqlite3.Connection, session: int) -> None:
        self._sessions -= 1
        for table in ("entry", "message", "pending"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))  # noqa: S608  # our own names
        db.execute("DELETE FROM session WHERE id = ?", (session,))

    def _count_sessions(self, db: sqlite3.Connection) -> None:
        [[self._sessions]] = db.execute("SELECT count(*) FROM session")

    # Reading: one statement each, so that each sees one moment

    async def pending(self, session_id: str) -> Sequence[Entry]:
        rows = await self._read(
            "SELECT e.seq, e.kind, e.ts, e.data FROM session s LEFT JOIN pending p ON p.session = s.id"
            " LEFT JOIN entry e ON e.session = p.session AND e.seq = p.seq WHERE s.session_id = ? ORDER BY p.seq",
            (session_id,),
        )
        return _entries(_found(rows))

    async def head(self, session_id: str) -> Position | None:
        rows = await self._read("SELECT epoch, seq FROM session WHERE session_id = ?", (session_id,))
        return Position(*rows[0]) if rows else None

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        rows = _found(
            await self._read(
                "SELECT e.seq, e.kind, e.ts, e.data, s.epoch, s.floor FROM session s LEFT JOIN entry e"
                " ON e.session = s.id AND e.seq > max(?, s.floor) WHERE s.session_id = ? ORDER BY e.seq LIMIT ?",
                (after, session_id, limit),
            )
        )
        entries, size = _entries(rows), 0
        for count, entry in enumerate(entries):
            size += len(entry.data)
            if size > max_bytes and count > 0:
                del entries[count:]
                break
        return LogPage(rows[0][4], rows[0][5], entries)

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        query = _HISTORY if since is None else _HISTORY_SINCE
        values = {"session_id": session_id, "limit": limit, "offset": offset, "since": since}
        rows = _found(await self._read(query, values))
        return HistoryPage(rows[0][4], _entries(rows)) if self._limits.history else HistoryPage(0, [])

    async def session(self, session_id: str) -> SessionRecord:
        rows = await self._read(f"{_RECORD} WHERE session_id = ?", (session_id,))
        return SessionRecord(*_found(rows)[0][:5])

    async def sessions(self, *, limit: int, offset: int) -> SessionRecordPage:
        rows = await self._read(f"{_RECORD} ORDER BY id LIMIT ? OFFSET ?", (limit, offset))
        [[total]] = await self._read("SELECT count(*) FROM session", ())
        return SessionRecordPage(total, [SessionRecord(*row[:5]) for row in rows])

    async def _read(self, query: str, values: Any) -> list[Any]:
        reader = await self._readers.get()
        try:
            return list(await reader.execute_fetchall(query, values))
        except sqlite3.Error as exc:
            raise StoreUnavailable from exc
        finally:
            self._readers.put_nowait(reader)


_RECORD = "SELECT session_id, created_ms, active_ms, seq - floor, pending FROM session"


def _known(db: sqlite3.Connection, session: int, kind: MessageType, message_id: str) -> Any:
    query = "SELECT seq, fingerprint FROM message WHERE session = ? AND kind = ? AND message_id = ?"
    return db.execute(query, (session, kind.value, message_id)).fetchone()


def _drop(db: sqlite3.Connection, session: int, seq: int) -> int:
    """Take an entry out of the log, unless it is a pending prompt; returns its size."""
    [[size, pending]] = db.execute(
        "SELECT length(e.data), p.seq FROM entry e LEFT JOIN pending p ON p.session = e.session AND p.seq = e.seq"
        " WHERE e.session = ? AND e.seq = ?",
        (session, seq),
    ).fetchall()
    if pending is None:
        db.execute("DELETE FROM entry WHERE session = ? AND seq = ?", (session, seq))
    return int(size)


def _probe(db: sqlite3.Connection) -> None:
    """Write as much as the largest message has."""
    db.execute("INSERT OR REPLACE INTO probe (id, filler) VALUES (1, randomblob(?))", (MAX_TEXT_BYTES,))


def _found(rows: list[Any]) -> list[Any]:
    """The outer join gives at least one row for a session that exists."""
    if not rows:
        raise SessionNotFound
    return rows


def _entries(rows: list[Any]) -> list[Entry]:
    return [Entry(row[0], MessageType(row[1]), row[2], row[3]) for row in rows if row[0] is not None]
