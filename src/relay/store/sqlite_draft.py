"""What one transaction makes of the committed state: nothing of it is seen before the commit, or ever if that fails.

Used by the writer's thread. The rules of keeping a message are here; what a draft does not have itself it finds in the
mirror and the journal, and then in the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from relay.errors import PromptNotFound, RelayError, SessionNotFound
from relay.models import PROMPT
from relay.store.base import CONFLICT, DUPLICATE, KEPT, NewEntry, Outcome, StoreLimits
from relay.store.sqlite_journal import Change, Ids, Journal, Move, Record, Steps
from relay.store.sqlite_mirror import Mirror, Session
from relay.store.sqlite_move import move_records
from relay.store.sqlite_tables import (
    change_sessions,
    entry_sizes,
    forget_sessions,
    is_large,
    look_up_prompts,
    look_up_responses,
    without_large,
    write_journal,
    write_large,
)
from relay.wire import fingerprint

REMEMBERED_PIECES = 256
"""Of so many logs it is remembered how large their oldest entries are, which are the next to be dropped."""


class Draft:
    """A transaction under way."""

    def __init__(
        self,
        db: sqlite3.Connection,
        mirror: Mirror,
        journal: Journal,
        limits: StoreLimits,
        new_epoch: Callable[[], str],
    ) -> None:
        self.db = db
        self._mirror = mirror
        self._journal = journal
        self._seen = journal.seen
        self._limits = limits
        self._new_epoch = new_epoch
        self._max_messages = limits.log_messages
        self._max_bytes = limits.log_bytes
        self._max_pending = limits.max_pending_per_session
        self._sessions: dict[str, Session | None] = {}  # those created or changed by a step; None are gone
        self._next_id = mirror.next_id
        # The messages kept here:
        self._records: list[Record] = []
        self._newest: dict[str, Record] = {}  # of each session
        self._followed: list[Session] = []  # the sessions of these, in the same order
        self._ids = Ids()
        self._large = False
        self._entries: Sequence[NewEntry] = ()
        self._places = [self._ids]  # where ids are to be looked for, see `add`
        self._asked = False
        self._changes: list[Change] = []
        self._move: Move | None = None
        self._row = journal.last_row
        self._piece = journal.last_piece
        self._moved_bytes = 0

    # Messages

    def add(self, entries: Sequence[NewEntry]) -> list[Outcome | RelayError]:
        """What becomes of each, or the refusal: see `Store.add_prompt` and `Store.add_response`."""
        self._entries = entries
        for ids in (self._journal.ids, self._journal.old_ids):
            if ids.prompts or ids.responses:  # else it is empty
                self._places.append(ids)
        results: list[Outcome | RelayError] = []
        for new in entries:
            try:
                results.append(self._add_prompt(new) if new.kind is PROMPT else self._add_response(new))
            except RelayError as error:  # noqa: PERF203  # one refusal must not end the others
                results.append(error)
        return results

    def _add_prompt(self, new: NewEntry) -> Outcome:
        session = self._stands(new.session_id) or self._create(new)
        prompt = session.number, new.message_id
        if self._seen.use(prompt) and self._seq(session.number, new.message_id):
            return DUPLICATE
        if session.pending >= self._max_pending:
            raise self._limits.too_many_pending()
        self._ids.prompts[prompt] = session.seq + 1
        self._keep(session, new, session.pending + 1, 0)
        return KEPT

    def _add_response(self, new: NewEntry) -> Outcome:
        session = self._stands(new.session_id)
        if session is None:
            raise SessionNotFound
        response = session.number, new.message_id
        said = fingerprint(new.meaning)
        for ids in self._places_of(session.number) if self._seen.use(response) else ():
            if response in ids.responses:
                return DUPLICATE if ids.responses[response] == said else CONFLICT
        answers = self._seq(session.number, new.client_msg_id)
        if not answers:
            raise PromptNotFound
        self._ids.responses[response] = said
        place = session.number, answers
        for ids in self._places:
            if place in ids.answered:
                self._keep(session, new, session.pending, 0, said)
                return KEPT
        self._ids.answered.add(place)
        self._keep(session, new, session.pending - 1, answers, said)
        return KEPT

    def _stands(self, session_id: str) -> Session | Record | None:
        """How the session stands: as it is committed, or as the newest of these records says. Not to be changed."""
        return self._newest.get(session_id) or self._mirror.sessions.get(session_id)

    def _seq(self, session: int, client_msg_id: str) -> int:
        """The seq of the prompt with this id; 0 if there is none."""
        prompt = session, client_msg_id
        for ids in self._places_of(session):
            if seq := ids.prompts.get(prompt):
                return seq
        return 0

    def _places_of(self, session: int) -> Iterator[Ids]:
        """Where the ids of a session may be: in memory first, and then what the tables say when they are asked."""
        yield from self._places
        if not self._asked and self._is_in_tables(session):
            self._asked = True
            known = self._ask_tables()
            self._places.append(known)
            yield known

    def _is_in_tables(self, session: int) -> bool:
        tail = self._mirror.records(session)
        return session < self._mirror.next_id and (not tail or tail[0].seq > 1)

    def _ask_tables(self) -> Ids:
        """What they know of the ids in all messages of this draft: one question costs little more than one id."""
        prompts: list[int | str] = []
        responses: list[int | str] = []
        for new in self._entries:
            session = self._mirror.sessions.get(new.session_id)
            if session is None or not self._is_in_tables(session.number):
                continue
            message = session.number, new.message_id
            prompt = session.number, new.client_msg_id
            if new.kind is not PROMPT:
                responses += message
            elif not self._seen.perhaps(message):
                continue
            # Of what is in memory the tables may have the id, but not yet the part that tells whether it waits.
            if not any(prompt in ids.prompts for ids in self._places):
                prompts += prompt
        known = Ids()
        for number, message_id, seq, pending in look_up_prompts(self.db, prompts):
            known.prompts[number, message_id] = seq
            if not pending:
                known.answered.add((number, seq))
        for number, message_id, said in look_up_responses(self.db, responses):
            known.responses[number, message_id] = said
        return known

    def _create(self, new: NewEntry) -> Session:
        created = self._next_id - self._mirror.next_id
        if len(self._mirror.sessions) + created >= self._limits.max_sessions:
            raise self._limits.too_many_sessions()
        session = Session(self._next_id, new.session_id, self._new_epoch(), 0, 0, 0, 0, new.now_ms, new.now_ms)
        self._next_id += 1
        self._sessions[new.session_id] = session
        return session

    def _keep(self, before: Session | Record, new: NewEntry, pending: int, answers: int, said: bytes = b"") -> None:
        """Add the message to its session, which stood like this before it; `said` is a response's fingerprint."""
        size = len(new.data)
        seq, floor, log_bytes = before.seq + 1, before.floor, before.log_bytes + size
        self._large = self._large or is_large(new)
        if seq - floor > self._max_messages or log_bytes > self._max_bytes:
            floor, log_bytes = self._trim(before, log_bytes, size)
        record = Record(
            seq,
            new.kind,
            new.ts,
            new.data,
            before.number,
            before.session_id,
            before.epoch,
            floor,
            log_bytes,
            pending,
            answers,
            new.message_id,
            said,
            new.now_ms if new.now_ms > before.active_ms else before.active_ms,
        )
        self._records.append(record)
        self._newest[new.session_id] = record
        if isinstance(before, Session):
            self._followed.append(before)

    def _trim(self, before: Session | Record, log_bytes: int, newest: int) -> tuple[int, int]:
        """The floor, and the bytes above it, when the oldest entries are dropped until the log is within its bounds.

        With its newest entry, which has so many bytes, it has `log_bytes`.
        """
        seq, floor = before.seq + 1, before.floor
        while seq - floor > self._max_messages or log_bytes > self._max_bytes:
            floor += 1
            log_bytes -= newest if floor == seq else self._size(before, floor)
        return floor, log_bytes

    def _size(self, session: Session | Record, seq: int) -> int:
        """The bytes of one entry of the log, but for the newest."""
        committed = self._mirror.sessions.get(session.session_id)
        if committed is None or seq > committed.seq:
            own = (record for record in self._records if record.number == session.number)
            return next(len(record.data) for record in own if record.seq == seq)
        tail = self._mirror.records(session.number)
        if tail and seq >= tail[0].seq:
            return len(tail[seq - tail[0].seq].data)
        return self._settled_size(session.number, seq)

    def _settled_size(self, session: int, seq: int) -> int:
        first, sizes = self._journal.sizes.get(session, (seq, ()))
        if not first <= seq < first + len(sizes):  # below it too: a transaction that has failed went further
            if len(self._journal.sizes) >= REMEMBERED_PIECES:
                self._journal.sizes.clear()
            first, sizes = self._journal.sizes[session] = entry_sizes(self.db, session, seq)
        return sizes[seq - first]

    # Sessions

    def session(self, session_id: str) -> Session | None:
        """The session as the steps before have left it; not to be changed."""
        if session_id in self._sessions:
            return self._sessions[session_id]
        return self._mirror.sessions.get(session_id)

    def sessions(self) -> Sequence[Session]:
        """All of them, in the order of creation; not to be changed."""
        return [session for each in self._mirror.sessions if (session := self.session(each)) is not None]

    def save(self, sessions: Sequence[Session]) -> None:
        """Let sessions have the epoch and the time of activity that these have."""
        changes = [Change(session.number, session.epoch, session.active_ms, gone=False) for session in sessions]
        change_sessions(self.db, changes)
        self._changes += changes
        self._sessions |= {session.session_id: session for session in sessions}

    def forget(self, sessions: Sequence[Session]) -> None:
        """Forget sessions and everything in them."""
        forget_sessions(self.db, sessions)
        self._changes += [Change(session.number, session.epoch, session.active_ms, gone=True) for session in sessions]
        self._sessions |= dict.fromkeys((session.session_id for session in sessions), None)

    def begin(self) -> None:
        """Begin a transaction in which sessions are changed."""
        self._begin(self._journal.next_move(self._mirror.tails))

    def end(self) -> None:
        """End it."""
        if self._changes:
            self._write(self._changes)
        self.db.execute("COMMIT")

    # The journal

    def write(self) -> None:
        """Commit the messages that were added."""
        if not self._records:
            return
        move = self._journal.next_move(self._mirror.tails)
        if move is None and not self._large and not self.db.in_transaction:
            # One statement is a transaction by itself. Nobody else writes, so what was read before it still holds.
            self._write(())
            return
        self._begin(move)
        self._write(())
        self._piece = write_large(self.db, self._records, self._piece)
        self.db.execute("COMMIT")

    def _begin(self, move: Move | None) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self._move = move
        if move is not None:
            # Before anything else: it puts sessions into the tables as they were before this transaction.
            self._piece, self._moved_bytes = move_records(self.db, move, self._mirror.sessions, self._piece)

    def _write(self, changes: Sequence[Change]) -> None:
        self._row += 1
        records = without_large(self._records) if self._large else self._records
        write_journal(self.db, self._row, Steps(records, changes))

    # The end

    def commit(self) -> None:
        """The transaction is committed: let the journal know, in the writer's thread."""
        journal = self._journal
        journal.last_piece = self._piece
        journal.seen.renew(self._next_id)
        if self._move is not None:
            journal.moved(self._move, self._moved_bytes)
        journal.add(self._row, self._records, self._ids, len(self._changes))
        if self._changes:
            self._forget()

    def _forget(self) -> None:
        """Let the journal know which records went with their session, but for those that were moved before."""
        moved = self._move.counts() if self._move is not None else {}
        gone = {change.session for change in self._changes if change.gone}
        for session in gone:
            self._journal.forget(self._mirror.records(session)[moved.get(session, 0) :])
        self._journal.forget_ids(gone)

    def apply(self) -> Sequence[Record]:
        """Let the mirror know too, on the event loop. Returns what was kept, in order."""
        mirror = self._mirror
        if self._move is not None:
            mirror.moved(self._move)
        mirror.change(self._sessions)
        mirror.next_id = self._next_id
        for session, newest in zip(self._followed, self._newest.values(), strict=True):
            session.follow(newest)
        mirror.add(self._records)
        return self._records
