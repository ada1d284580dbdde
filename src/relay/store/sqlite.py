"""One file on disk, for one process that must survive a restart or a power cut.

Nothing is acknowledged before it is committed with `synchronous=FULL`. One thread writes, in groups, to a journal that
is moved to the tables now and then. What the journal holds and where each log ends is in memory too, so that most reads
need no thread; the others have connections of their own and never wait for the writer. The schema is in `sql/`.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
from msgspec.structs import replace

from relay.errors import SessionNotFound, StartupError, StoreUnavailable
from relay.models import MAX_TEXT_BYTES, MAX_TS_MS, Number
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
from relay.store.sqlite_draft import Draft
from relay.store.sqlite_file import BUSY_SECONDS, FileLock, connect, prepare
from relay.store.sqlite_journal import Journal
from relay.store.sqlite_mirror import Mirror, Session, Tail
from relay.store.sqlite_move import PIECE_ENTRIES
from relay.store.sqlite_past import Past
from relay.store.sqlite_tables import decode_entries
from relay.store.sqlite_writer import GroupWriter

READERS = 2
"""Connections that read; each has a thread."""

# Each tells how far the tables know the log. No row: there is no such session any more.
_LOG = """
    SELECT k.seq, entries FROM known k LEFT JOIN part p ON p.session = k.id AND p.last > :after AND p.last < :before
    LEFT JOIN piece ON piece.id = p.piece WHERE k.id = :id ORDER BY p.last
"""
_PENDING = """
    SELECT k.seq, entries, p.waiting FROM known k
    LEFT JOIN part p ON p.session = k.id AND p.last > :after AND p.waiting != 0
    LEFT JOIN piece ON piece.id = p.piece WHERE k.id = :id ORDER BY p.last
"""
_SINCE = """
    SELECT k.seq, p.first, p.last, CASE WHEN p.min_ts <= :since THEN entries END FROM known k LEFT JOIN part p
    ON p.session = k.id AND p.last > :after AND p.max_ts > :since LEFT JOIN piece ON piece.id = p.piece
    WHERE k.id = :id ORDER BY p.last
"""


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
        self._lock = FileLock(path)
        self._mirror = Mirror()
        self._journal = Journal()
        self._readers: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._reading = False
        self._reads = 0  # those under way
        self._no_reads = asyncio.Event()
        self._writer: GroupWriter
        self._listener: Listener

    async def open(self, listener: Listener) -> None:
        self._listener = listener
        self._lock.acquire()
        try:
            await asyncio.to_thread(prepare, self._path)
            await self._start()
        except BaseException:
            self._lock.release()
            raise

    async def _start(self) -> None:
        self._mirror = Mirror()
        self._journal = journal = Journal()
        self._writer = GroupWriter(
            connect(self._path),
            lambda db: Draft(db, self._mirror, journal, self._limits, self._new_epoch),
            self._listener.entry_added,
        )
        self._writer.start()
        try:
            past = await self._writer.submit(lambda draft: Past(draft.db))
            past.restore(self._mirror, journal)
            await self._settle()
            uri = self._path.absolute().as_uri() + "?mode=ro"
            for _ in range(READERS):
                reader = await aiosqlite.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
                self._readers.put_nowait(reader)
            self._reading = True
        except (StoreUnavailable, sqlite3.Error) as exc:
            await self._stop()
            raise StartupError(f"{self._path} cannot be read: {exc.__cause__ or exc}. Restore a backup.") from exc

    async def _settle(self) -> None:
        """Move what an earlier process has left in the journal: many short lives would otherwise fill it."""
        self._journal.is_starting = True
        with suppress(StoreUnavailable):  # it can be read, and no more: the disk may be full
            while self._journal.rows:
                await self._writer.submit(lambda _: None)
        self._journal.is_starting = False

    async def close(self) -> None:
        await self._stop()
        self._lock.release()

    async def _stop(self) -> None:
        await self._writer.close()
        self._reading = False
        while self._reads:  # a reader that is not here is at work, and others may wait for it
            self._no_reads.clear()
            await self._no_reads.wait()
        while not self._readers.empty():
            await self._readers.get_nowait().close()

    async def check(self) -> None:
        if not self._writer.healthy:
            await self._writer.submit(_probe)

    # Writing

    def add_prompt(self, entry: NewEntry) -> Awaitable[Outcome]:
        return self._writer.keep(entry)

    def add_response(self, entry: NewEntry) -> Awaitable[Outcome]:
        return self._writer.keep(entry)

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        def step(draft: Draft) -> None:
            session = _found(draft.session(session_id))
            if session.epoch == epoch:
                draft.save([replace(session, epoch=self._new_epoch())])

        await self._writer.submit(step)

    async def touch(self, used_ms: Mapping[str, int]) -> None:
        def step(draft: Draft) -> None:
            known = [(session, at_ms) for each, at_ms in used_ms.items() if (session := draft.session(each))]
            draft.save([replace(session, active_ms=at_ms) for session, at_ms in known if at_ms > session.active_ms])

        if used_ms:
            await self._writer.submit(step)

    async def delete_session(self, session_id: str) -> None:
        def step(draft: Draft) -> None:
            draft.forget([_found(draft.session(session_id))])

        await self._writer.submit(step, lambda _: self._listener.session_deleted(session_id))

    async def collect_idle(self, idle_since_ms: int, *, keep: Collection[str]) -> Sequence[str]:
        def step(draft: Draft) -> list[str]:
            idle = [
                session
                for session in draft.sessions()
                if session.active_ms <= idle_since_ms and session.pending == 0 and session.session_id not in keep
            ]
            draft.forget(idle)
            return [session.session_id for session in idle]

        def announce(collected: list[str]) -> None:
            for session_id in collected:
                self._listener.session_deleted(session_id)

        return await self._writer.submit(step, announce)

    # Reading: what memory does not have comes from the tables, in one statement, so that it is of one moment

    async def pending(self, session_id: str) -> Sequence[Entry]:
        session = self._session(session_id)
        waiting = self._mirror.waiting(session)
        if session.pending == len(waiting.prompts):
            return list(waiting.prompts.values())
        found = await self._read(session_id, _PENDING, after=session.answered_to)
        waiting = self._mirror.waiting(found.session)
        settled = [
            entry
            for _, packed, mask in found.rows
            for entry in _waiting(packed, mask)
            if entry.seq not in waiting.answered
        ]
        pending = [*settled, *(entry for seq, entry in waiting.prompts.items() if seq > found.seq)]
        if pending:
            found.session.answered_to = pending[0].seq - 1
        return pending

    async def head(self, session_id: str) -> Position | None:
        session = self._mirror.sessions.get(session_id)
        return None if session is None else Position(session.epoch, session.seq)

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        session, entries = await self._log(session_id, after, limit)
        size = 0
        for count, entry in enumerate(entries):
            size += len(entry.data)
            if size > max_bytes and count > 0:
                del entries[count:]
                break
        return LogPage(session.epoch, session.floor, entries)

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        session = self._session(session_id)
        if not self._limits.history:
            return HistoryPage(0, [])
        if since is not None:
            return await self._history_since(session_id, limit, offset, since)
        # seq is dense above the floor: where a page begins is known without counting the entries before it.
        session, entries = await self._log(session_id, session.floor + offset, limit)
        return HistoryPage(session.seq - session.floor, entries)

    async def session(self, session_id: str) -> SessionRecord:
        return _record(self._session(session_id))

    async def sessions(self, *, limit: int, offset: int) -> SessionRecordPage:
        page = islice(self._mirror.sessions.values(), offset, offset + limit)
        return SessionRecordPage(len(self._mirror.sessions), [_record(session) for session in page])

    def _session(self, session_id: str) -> Session:
        return _found(self._mirror.sessions.get(session_id))

    async def _log(self, session_id: str, after: int, limit: int) -> tuple[Session, list[Entry]]:
        """The entries of the log after `after`, at most `limit`, and the session as it is then."""
        while True:
            session = self._session(session_id)
            tail = self._mirror.tail(session)
            first = max(after, session.floor)
            if first >= tail.start:
                return session, tail.after(first, limit)
            found = await self._read(session_id, _LOG, after=first, before=first + limit + PIECE_ENTRIES)
            seqs = range(max(first, found.session.floor) + 1, min(first + limit, found.seq) + 1)
            entries = [entry for _, packed in found.rows for entry in _within(packed, seqs)]
            if first + limit > found.seq:
                entries += found.tail.after(max(found.seq, found.session.floor), limit - len(entries))
            if entries or found.session.floor <= first:
                return found.session, entries
            # All of the page was dropped meanwhile; what comes after it was not asked for.

    async def _history_since(self, session_id: str, limit: int, offset: int, since: Number) -> HistoryPage:
        while True:
            matching = await self._matching(self._session(session_id), since)
            seqs = _page(matching, offset, limit)
            entries: list[Entry] = []
            if seqs:
                _, log = await self._log(session_id, seqs[0] - 1, seqs[-1] - seqs[0] + 1)
                entries = [entry for entry in log if entry.ts > since][: len(seqs)]
            if entries or not seqs:
                return HistoryPage(sum(map(len, matching)), entries)
            # All of the page was dropped meanwhile.

    async def _matching(self, session: Session, since: Number) -> list[Sequence[int]]:
        """The seqs of the entries of the log with ts > since, in parts."""
        tail, seq = self._mirror.tail(session), session.floor
        parts: list[Sequence[int]] = []
        if seq < tail.start:
            # No ts is beyond these bounds, but a number may be that SQLite cannot take.
            bounded = max(-1, min(since, MAX_TS_MS))
            found = await self._read(session.session_id, _SINCE, after=session.floor, since=bounded)
            tail, floor = found.tail, found.session.floor
            for _, first, last, packed in found.rows:
                seqs = range(max(first, floor + 1), min(last, found.seq) + 1)
                if packed is None:
                    parts.append(seqs)
                else:
                    parts.append([entry.seq for entry in _within(packed, seqs) if entry.ts > since])
            seq = max(found.seq, floor)
        return [*parts, [entry.seq for entry in tail.after(seq, len(tail.records)) if entry.ts > since]]

    async def _read(self, session_id: str, query: str, **values: Number) -> _Found:
        """Ask the tables, and say what memory has beyond that."""
        while True:
            asked = self._session(session_id)
            rows = await self._fetch(query, values | {"id": asked.number})
            session = self._session(session_id)
            tail = self._mirror.tail(session)
            if not rows or session.number != asked.number:
                raise SessionNotFound
            if rows[0][0] >= tail.start:
                # The outer join gives at least one row for a session that exists.
                return _Found(session, tail, rows[0][0], [row for row in rows if row[1] is not None])
            # Some of the journal was moved between the answer and now: neither has that.

    async def _fetch(self, query: str, values: Mapping[str, Number]) -> list[Any]:
        if not self._reading:
            raise StoreUnavailable
        self._reads += 1
        try:
            reader = await self._readers.get()
            try:
                return list(await reader.execute_fetchall(query, values))
            except sqlite3.Error as exc:
                raise StoreUnavailable from exc
            finally:
                self._readers.put_nowait(reader)
        finally:
            self._reads -= 1
            if not self._reads:
                self._no_reads.set()


class _Found(msgspec.Struct, frozen=True):
    """Rows of the tables, which know the log up to `seq`; the session, and its tail beyond that, as of now."""

    session: Session
    tail: Tail
    seq: int
    rows: list[Any]


def _probe(draft: Draft) -> None:
    """Write as much as the largest message has."""
    draft.db.execute("INSERT OR REPLACE INTO probe (id, filler) VALUES (1, randomblob(?))", (MAX_TEXT_BYTES,))


def _found(session: Session | None) -> Session:
    if session is None:
        raise SessionNotFound
    return session


def _record(session: Session) -> SessionRecord:
    messages = session.seq - session.floor
    return SessionRecord(session.session_id, session.created_ms, session.active_ms, messages, session.pending)


def _waiting(packed: bytes, mask: int) -> Iterator[Entry]:
    """Those entries of a piece whose bit is set."""
    return (entry for number, entry in enumerate(decode_entries(packed)) if mask >> number & 1)


def _within(packed: bytes, seqs: range) -> list[Entry]:
    """Those entries of a piece, which has every one from its first to its last."""
    entries = decode_entries(packed)
    first = entries[0].seq
    return entries[max(0, seqs.start - first) : max(0, seqs.stop - first)]


def _page(parts: Iterable[Sequence[int]], offset: int, limit: int) -> list[int]:
    page: list[int] = []
    for part in parts:
        page += part[offset : offset + limit - len(page)]
        offset = max(0, offset - len(part))
    return page
