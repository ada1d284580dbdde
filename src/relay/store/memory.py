"""The default store: dictionaries in this process. Everything is gone when the process ends.

Also the reference that the other stores are compared with. No method awaits anything, so each is one atomic step.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from relay.errors import (
    PromptNotFound,
    SessionNotFound,
    StoreFull,
)
from relay.models import Number
from relay.store.base import (
    CONFLICT,
    DUPLICATE,
    KEPT,
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

# What Python itself takes beside the bytes of messages and ids; tests/store/test_memory.py compares with tracemalloc.
_SESSION_BYTES = 1_500
_ENTRY_BYTES = 250
_ID_BYTES = 250
_MESSAGE_BYTES = _ENTRY_BYTES + _ID_BYTES
_CHARACTER_BYTES = 8
"""An id may hold characters of four bytes; Python then takes four for each, and as much for its copy in UTF-8."""


class _Log:
    """Entries by seq, of which the oldest may be dropped; finding one by its seq is one step."""

    __slots__ = ("_start", "bytes", "entries", "floor", "head")

    def __init__(self) -> None:
        self.entries: list[Entry | None] = []
        self._start = 0  # dropped entries leave None behind until half the list is
        self.floor = 0
        self.head = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self.head - self.floor

    def drop_oldest(self) -> int:
        """Drop one entry; returns the bytes that it held."""
        entry = self.entries[self._start]
        assert entry is not None
        self.entries[self._start] = None
        self._start += 1
        self.floor += 1
        self.bytes -= len(entry.data)
        if self._start > 64 and self._start * 2 > len(self.entries):
            del self.entries[: self._start]
            self._start = 0
        return len(entry.data)

    def after(self, seq: int, limit: int) -> list[Entry]:
        first = self._start + max(0, seq - self.floor)
        return self.entries[first : first + limit]  # type: ignore[return-value]  # None only before _start


class _Session:
    __slots__ = ("active_ms", "answered", "bytes", "created_ms", "epoch", "log", "pending", "responses")

    def __init__(self, epoch: str, now_ms: int) -> None:
        self.epoch = epoch
        self.created_ms = self.active_ms = now_ms
        self.log = _Log()
        self.pending: dict[str, Entry] = {}
        """Prompts by their id, in the order of the log."""
        self.answered: set[str] = set()
        """The ids of all other prompts."""
        self.responses: dict[str, int] = {}
        """The hash of what each said: with the secret of this process, which nobody outside can aim at."""
        self.bytes = 0


class MemoryStore(LocalCommons):
    """See `Store` for what it promises."""

    def __init__(
        self,
        limits: StoreLimits,
        *,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(4),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._limits = limits
        self._new_epoch = new_epoch
        self._max_pending = limits.max_pending_per_session
        self._max_messages = limits.log_messages
        self._max_bytes = limits.log_bytes
        self._max_store_bytes = limits.store_max_bytes
        self._sessions: dict[str, _Session] = {}
        self._bytes = 0
        self._listener: Listener

    async def open(self, listener: Listener) -> None:
        self._listener = listener

    async def close(self) -> None:
        self._sessions.clear()

    async def check(self) -> None:
        return

    def add_prompt(self, entry: NewEntry) -> Outcome:
        session_id, message_id = entry.session_id, entry.message_id
        session = self._sessions.get(session_id)
        # A pending prompt counts beside the log, which may drop it first: too much rather than too little.
        more = len(entry.data)
        if session is None:
            if len(self._sessions) >= self._limits.max_sessions:
                raise self._limits.too_many_sessions()
            session = _Session(self._new_epoch(), entry.now_ms)
            kept = self._keep(session, entry, more + _SESSION_BYTES + _CHARACTER_BYTES * len(session_id))
            self._sessions[session_id] = session
        elif message_id in session.pending or message_id in session.answered:
            return DUPLICATE
        elif len(session.pending) >= self._max_pending:
            raise self._limits.too_many_pending()
        else:
            kept = self._keep(session, entry, more)
        session.pending[message_id] = kept
        self._listener.entry_added(session_id, session.epoch, kept)
        return KEPT

    def add_response(self, entry: NewEntry) -> Outcome:
        session = self._session(entry.session_id)
        said = hash(entry.meaning)
        known = session.responses.get(entry.message_id)
        if known is not None:
            return DUPLICATE if known == said else CONFLICT
        prompt_id = entry.client_msg_id
        prompt = session.pending.get(prompt_id)
        if prompt is not None:
            kept = self._keep(session, entry, -len(prompt.data))
            del session.pending[prompt_id]
            session.answered.add(prompt_id)
        elif prompt_id in session.answered:
            kept = self._keep(session, entry, 0)
        else:
            raise PromptNotFound
        session.responses[entry.message_id] = said
        self._listener.entry_added(entry.session_id, session.epoch, kept)
        return KEPT

    async def pending(self, session_id: str) -> Sequence[Entry]:
        return list(self._session(session_id).pending.values())

    async def head(self, session_id: str) -> Position | None:
        session = self._sessions.get(session_id)
        return None if session is None else Position(session.epoch, session.log.head)

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        session = self._session(session_id)
        entries = session.log.after(after, limit)
        size = 0
        for count, entry in enumerate(entries):
            size += len(entry.data)
            if size > max_bytes and count > 0:
                del entries[count:]
                break
        return LogPage(session.epoch, session.log.floor, entries)

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        session = self._session(session_id)
        if session.epoch == epoch:
            session.epoch = self._new_epoch()

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        log = self._session(session_id).log
        if not self._limits.history:
            return HistoryPage(0, [])
        if since is None:
            return HistoryPage(len(log), log.after(log.floor + offset, limit))
        matching = [entry for entry in log.after(log.floor, len(log)) if entry.ts > since]
        return HistoryPage(len(matching), matching[offset : offset + limit])

    async def session(self, session_id: str) -> SessionRecord:
        return self._record(session_id, self._session(session_id))

    async def sessions(self, *, limit: int, offset: int) -> SessionRecordPage:
        page = islice(self._sessions.items(), offset, offset + limit)
        return SessionRecordPage(len(self._sessions), [self._record(*item) for item in page])

    async def touch(self, used_ms: Mapping[str, int]) -> None:
        for session_id, at_ms in used_ms.items():
            if session := self._sessions.get(session_id):
                session.active_ms = max(session.active_ms, at_ms)

    async def delete_session(self, session_id: str) -> None:
        self._session(session_id)
        self._forget(session_id)

    async def collect_idle(self, idle_since_ms: int, *, keep: Collection[str]) -> Sequence[str]:
        idle = [
            session_id
            for session_id, session in self._sessions.items()
            if session.active_ms <= idle_since_ms and not session.pending and session_id not in keep
        ]
        for session_id in idle:
            self._forget(session_id)
        return idle

    def _session(self, session_id: str) -> _Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFound from None

    def _keep(self, session: _Session, new: NewEntry, more: int) -> Entry:
        """Put it at the end of the log; it takes so many bytes `more`. Raises StoreFull if there is too little left."""
        length = len(new.data)
        size = length + _MESSAGE_BYTES + _CHARACTER_BYTES * len(new.message_id) + more
        total = self._bytes + size
        if total > self._max_store_bytes:
            raise StoreFull(f"this server keeps at most {self._max_store_bytes} bytes")
        log = session.log
        log.head = seq = log.head + 1
        log.bytes = held = log.bytes + length
        entry = Entry(seq, new.kind, new.ts, new.data)
        log.entries.append(entry)
        if new.now_ms > session.active_ms:
            session.active_ms = new.now_ms
        session.bytes += size
        self._bytes = total
        if held > self._max_bytes or seq - log.floor > self._max_messages:
            self._drop_oldest(session)
        return entry

    def _drop_oldest(self, session: _Session) -> None:
        """Bring the log back to its bounds."""
        log = session.log
        while log.bytes > self._max_bytes or log.head - log.floor > self._max_messages:
            size = log.drop_oldest() + _ENTRY_BYTES
            session.bytes -= size
            self._bytes -= size

    def _forget(self, session_id: str) -> None:
        self._bytes -= self._sessions.pop(session_id).bytes
        self._listener.session_deleted(session_id)

    @staticmethod
    def _record(session_id: str, session: _Session) -> SessionRecord:
        messages = len(session.log)
        return SessionRecord(session_id, session.created_ms, session.active_ms, messages, len(session.pending))
