"""What one transaction makes of the committed state: nothing of it is seen before the commit, or ever if that fails.

Used by the writer's thread. The rules of keeping a message are here; what a draft does not have itself it finds in the
mirror, and then in the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from relay.errors import PromptNotFound, RelayError, SessionNotFound
from relay.models import MessageType
from relay.store.base import CONFLICT, DUPLICATE, KEPT, Entry, NewEntry, Outcome, StoreLimits
from relay.store.sqlite_mirror import PROMPT, Mirror, Record, Session
from relay.store.sqlite_tables import (
    entry_size,
    forget_sessions,
    load_journal,
    load_sessions,
    look_up,
    save_sessions,
    settle,
    write_journal,
)


class Draft:
    """A transaction under way."""

    def __init__(
        self, db: sqlite3.Connection, mirror: Mirror, limits: StoreLimits, new_epoch: Callable[[], str]
    ) -> None:
        self.db = db
        self._mirror = mirror
        self._limits = limits
        self._new_epoch = new_epoch
        self._max_messages = limits.log_messages
        self._max_bytes = limits.log_bytes
        self._sessions: dict[str, Session | None] = {}  # those changed; None are gone
        self._next_id = mirror.next_id
        self._kept: list[tuple[Record, Entry]] = []
        self._bytes = 0  # of these
        # Of the messages kept here, and of those that the tables were asked for; by session_id and message_id:
        self._prompts: dict[tuple[str, str], int] = {}
        self._responses: dict[tuple[str, str], bytes] = {}
        self._answered: set[tuple[str, int]] = set()  # prompts by session_id and seq
        self._settled = False
        self._loaded: dict[str, int] = {}  # how far the tables know each log, when a draft takes them over

    # Messages

    def look_up(self, entries: Iterable[NewEntry]) -> None:
        """Ask the tables for the ids in these messages, which are then to be added."""
        names: dict[int, str] = {}
        prompts: list[tuple[int, str]] = []
        responses: list[tuple[int, str]] = []
        sessions, tails = self._mirror.sessions, self._mirror.tails
        for new in entries:
            session = sessions.get(new.session_id)
            if session is None:
                continue
            tail = tails.get(new.session_id)
            if tail is not None and tail.start == 0:
                continue  # all of it is in memory
            names[session.id] = new.session_id
            if new.kind is PROMPT:
                prompts.append((session.id, new.message_id))
            else:
                responses.append((session.id, new.message_id))
                if tail is None or new.client_msg_id not in tail.prompts:
                    prompts.append((session.id, new.client_msg_id))
        for known in look_up(self.db, MessageType.PROMPT, prompts):
            session_id = names[known.session]
            self._prompts[session_id, known.message_id] = known.seq
            if not known.pending:
                self._answered.add((session_id, known.seq))
        for known in look_up(self.db, MessageType.ASSISTANT, responses):
            self._responses[names[known.session], known.message_id] = known.fingerprint

    def add(self, entries: Iterable[NewEntry]) -> list[Outcome | RelayError]:
        """What becomes of each, or the refusal: see `Store.add_prompt` and `Store.add_response`."""
        results: list[Outcome | RelayError] = []
        for new in entries:
            try:
                results.append(self._add_prompt(new) if new.kind is PROMPT else self._add_response(new))
            except RelayError as error:  # noqa: PERF203  # one refusal must not end the others
                results.append(error)
        return results

    def _add_prompt(self, new: NewEntry) -> Outcome:
        session_id = new.session_id
        session = self._sessions.get(session_id) or self._mirror.sessions.get(session_id)
        if session is None:
            created = self._next_id - self._mirror.next_id
            if len(self._mirror.sessions) + created >= self._limits.max_sessions:
                raise self._limits.too_many_sessions()
            return self._keep(new, self._new_epoch())
        tail = self._mirror.tails.get(session_id)
        if (session_id, new.message_id) in self._prompts or (tail is not None and new.message_id in tail.prompts):
            return DUPLICATE
        if session.pending >= self._limits.max_pending_per_session:
            raise self._limits.too_many_pending()
        return self._keep(new, session.epoch)

    def _add_response(self, new: NewEntry) -> Outcome:
        session = self.session(new.session_id)
        if session is None:
            raise SessionNotFound
        known = self._response(new.session_id, new.message_id)
        if known is not None:
            return DUPLICATE if known == new.fingerprint else CONFLICT
        seq = self._prompt(new.session_id, new.client_msg_id)
        if seq == 0:
            raise PromptNotFound
        return self._keep(new, session.epoch, 0 if self._is_answered(new.session_id, seq) else seq)

    def _prompt(self, session_id: str, message_id: str) -> int:
        """The seq of the prompt with this id, 0 if there is none."""
        seq = self._prompts.get((session_id, message_id), 0)
        if seq == 0 and (tail := self._mirror.tails.get(session_id)):
            seq = tail.prompts.get(message_id, 0)
        return seq

    def _response(self, session_id: str, message_id: str) -> bytes | None:
        """The fingerprint of the response with this id."""
        tail = self._mirror.tails.get(session_id)
        if tail is not None and (found := tail.responses.get(message_id)):
            return found[1]
        return self._responses.get((session_id, message_id))

    def _is_answered(self, session_id: str, seq: int) -> bool:
        if (session_id, seq) in self._answered:
            return True
        tail = self._mirror.tails.get(session_id)
        return tail is not None and seq in tail.answered

    def _keep(self, new: NewEntry, epoch: str, answers: int = 0) -> Outcome:
        self._append(
            Record(
                new.session_id, epoch, new.kind, new.message_id, new.ts, new.data, new.now_ms, new.fingerprint, answers
            )
        )
        return KEPT

    def _append(self, record: Record) -> None:
        session_id = record.session_id
        session = self._sessions.get(session_id) or self._changing(record)
        seq = session.seq = session.seq + 1
        size = len(record.data)
        session.bytes += size
        self._bytes += size
        if record.now_ms > session.active_ms:
            session.active_ms = record.now_ms
        if record.kind is PROMPT:
            session.pending += 1
            self._prompts[session_id, record.message_id] = seq
        else:
            self._responses[session_id, record.message_id] = record.fingerprint
            if record.answers:
                session.pending -= 1
                self._answered.add((session_id, record.answers))
        self._kept.append((record, Entry(seq, record.kind, record.ts, record.data)))
        while seq - session.floor > self._max_messages or session.bytes > self._max_bytes:
            session.floor += 1
            session.bytes -= self._size(session, session.floor)

    def _changing(self, record: Record) -> Session:
        """A session of the draft's own: a copy of the committed one, or a new one."""
        committed = self._mirror.sessions.get(record.session_id)
        if committed is not None:
            session = replace(committed)
        else:
            session = Session(self._next_id, record.session_id, record.epoch, 0, 0, 0, 0, record.now_ms, record.now_ms)
            self._next_id += 1
        self._sessions[record.session_id] = session
        return session

    def _size(self, session: Session, seq: int) -> int:
        """The bytes of one entry of the log."""
        committed = self._mirror.sessions.get(session.session_id)
        if committed is None or seq > committed.seq:
            if self._loaded.get(session.session_id, 0) < seq:
                return next(
                    len(entry.data)
                    for record, entry in self._kept
                    if entry.seq == seq and record.session_id == session.session_id
                )
            return entry_size(self.db, session.id, seq)
        tail = self._mirror.tails.get(session.session_id)
        if tail is not None and seq > tail.start:
            return len(tail.entries[seq - tail.start - 1].data)
        return entry_size(self.db, session.id, seq)

    # Sessions

    def session(self, session_id: str) -> Session | None:
        """The session as it is by now; not to be changed."""
        if session_id in self._sessions:
            return self._sessions[session_id]
        return self._mirror.sessions.get(session_id)

    def sessions(self) -> Sequence[Session]:
        """All of them, in the order of creation; not to be changed."""
        return [session for each in self._mirror.sessions if (session := self.session(each)) is not None]

    def save(self, sessions: Sequence[Session]) -> None:
        """Let sessions be as given. The tables must have all of their logs: settle first."""
        save_sessions(self.db, sessions)
        self._sessions |= {session.session_id: session for session in sessions}

    def forget(self, sessions: Sequence[Session]) -> None:
        """Forget sessions and everything in them. The tables must have all of it: settle first."""
        forget_sessions(self.db, sessions)
        self._sessions |= dict.fromkeys((session.session_id for session in sessions), None)

    # The journal

    def settle(self) -> None:
        """Move the journal, as it was before this transaction, to the tables."""
        if self._mirror.tails:
            settle(self.db, self._mirror.sessions, self._mirror.tails)
        self._settled = True

    def write(self) -> None:
        """Commit the messages that were added, in the journal; what was there makes room if it must."""
        if not self._kept:
            return
        records = [record for record, _ in self._kept]
        if self._mirror.has_room(len(records), self._bytes):
            # One statement is a transaction by itself. Nobody else writes, so what was read before it still holds.
            write_journal(self.db, records)
            return
        self.db.execute("BEGIN IMMEDIATE")
        self.settle()
        write_journal(self.db, records)
        self.db.execute("COMMIT")

    def restore(self) -> None:
        """Take over what an earlier process has left: its sessions and its journal."""
        sessions = load_sessions(self.db)
        self._sessions |= sessions
        self._loaded = {session_id: session.seq for session_id, session in sessions.items()}
        self._next_id = max((session.id for session in sessions.values()), default=0) + 1
        for record in load_journal(self.db):
            self._append(record)

    # The end

    def apply(self) -> Sequence[tuple[Record, Entry]]:
        """The transaction is committed: let the mirror know, on the event loop. Returns what was kept, in order."""
        if self._settled:
            self._mirror.settle()
        self._mirror.change(self._sessions)
        self._mirror.next_id = self._next_id
        self._mirror.add(self._kept, self._bytes)
        return self._kept
