"""What the journal holds, as the writer's thread needs it: which ids are in it, and what is to be moved next.

A full journal is moved as fast as messages come, a slice at a time, so that no group waits long. That happens in
rounds, one after the other. A round goes through the sessions in the order of the tables: what is side by side there is
moved together. When it ends, all that was in the journal when it began is in the tables, and the rows of that time are
deleted, a few at a time. If a session has too much for one slice its ids are moved by themselves, sorted: most ids are
random, and with each slice they would go to all of its pages. What an earlier process has left is moved before anything
comes. Only the writer's thread uses this; the records themselves are in the mirror.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter

import msgspec

from relay.models import PROMPT
from relay.store.base import Entry
from relay.store.sqlite_seen import Id, Seen

JOURNAL_STEPS = 16_384
JOURNAL_BYTES = 16 * 1024**2
"""The journal holds no more than that and a group, and one step more for each session that it has messages of, up to
twice as many: what is too much is moved. The messages of many sessions go to many pages, and the more of them go at a
time, the fewer pages are written for each."""

SLICE_MESSAGES = 512
"""At least so many are moved at a time: those of one session become one piece, and others share its pages."""

MAX_SLICE = 2_048
"""And at most so many, whatever there is: a group waits for it."""


class Record(Entry, frozen=True, gc=False, array_like=True):
    """An entry in the journal, and what it made of its session: to keep it again needs no look around."""

    number: int
    """The session's."""
    session_id: str
    epoch: str
    floor: int
    log_bytes: int
    pending: int
    answers: int
    """The seq of the pending prompt whose wait it ends, or 0."""
    message_id: str
    fingerprint: bytes
    active_ms: int


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A session has become this, or is gone."""

    session: int
    epoch: str
    active_ms: int
    gone: bool


class Steps(msgspec.Struct, frozen=True, array_like=True):
    """A row of the journal: what one transaction did."""

    records: Sequence[Record] = ()
    changes: Sequence[Change] = ()


IdRow = tuple[int, str, int | bytes]
"""A session, the message_id of one of its prompts or responses, and the seq of that prompt or the response's
fingerprint."""


class Move(msgspec.Struct, frozen=True):
    """What goes with one group: the first records of some sessions, whose numbers rise, and rows that are done with."""

    row: int
    """The rows up to this one are deleted."""
    records: Sequence[Record | Sequence[Record]] = ()
    apart: Mapping[int, int] = {}
    """Sessions whose ids up to such a seq are moved by themselves."""
    ids: Sequence[IdRow] = ()
    """Those of them that go now."""
    messages: int = 0
    done: int = 0
    """So many of the sessions that are due in this round are through with it."""

    def counts(self) -> dict[int, int]:
        """How many records of each session are moved."""
        return dict(
            (each.number, 1) if isinstance(each, Record) else (each[0].number, len(each)) for each in self.records
        )


class Round(msgspec.Struct, frozen=True):
    """A round under way: the sessions that are yet to be moved, the next one last; what there was when it began."""

    due: list[int]
    row: int
    changes: int
    apart: dict[int, int] = {}
    """The sessions that had too much for one slice, and the last seq of theirs that is due: see `Move`."""


class Ids(msgspec.Struct):
    """Ids of messages that the tables may not have."""

    prompts: dict[Id, int] = {}
    """The seq of each."""
    responses: dict[Id, bytes] = {}
    """The fingerprint of each."""
    answered: set[tuple[int, int]] = set()
    """The prompts, of the tables too, whose wait one of them has ended, by session and seq."""

    def add(self, records: Iterable[Record]) -> None:
        """Those of these records too."""
        for record in records:
            if record.kind is PROMPT:
                self.prompts[record.number, record.message_id] = record.seq
            else:
                self.responses[record.number, record.message_id] = record.fingerprint
                if record.answers:
                    self.answered.add((record.number, record.answers))


Held = Mapping[int, Record | Sequence[Record]]
"""The records that the tables do not have, by session and in the order of seq: one, or several."""


class Journal:
    """How much it holds, and the ids in it. That changes only when a transaction has been committed.

    What `seen` has noted of one that has failed does no harm.

    A round may begin with one that fails, and ids be set apart; it goes on with the next. `held` are the records by
    session, as they were before the transaction.
    """

    def __init__(self) -> None:
        self.ids = Ids()
        self.old_ids = Ids()
        """Those that came before the round under way began: when it ends, the tables have them all."""
        self.late_ids: list[IdRow] = []
        """Those that are moved by themselves, the next one last. No round ends before they are."""
        self.seen = Seen(first_session=1)
        self.sizes: dict[int, tuple[int, Sequence[int]]] = {}
        """The oldest part of some logs: the seq of its first entry, and how many bytes each has."""
        self.is_starting = False
        """If so, all of it is moved, as if it were full."""
        self.messages = 0
        self.bytes = 0
        self.last_row = 0
        self.last_piece = 0
        """The highest id of a piece."""
        self._rows: deque[int] = deque()  # how many messages and changes are in each, up to the last one
        self._changes = 0
        self._round: Round | None = None
        self._done_row = 0  # the last row that was moved by rounds that have ended

    @property
    def rows(self) -> int:
        """How many it has."""
        return len(self._rows)

    def restore(self, last_row: int, sizes: Sequence[int], changes: int, moved: Mapping[int, Sequence[Record]]) -> None:
        """It has these rows, of so many messages and changes, from an earlier process; the records are added apart.

        Those that were moved are in the tables, but their ids may not be.
        """
        self.last_row = last_row
        self._rows.extend(sizes)
        self._changes = changes
        for _, records in sorted(moved.items(), reverse=True):
            self.ids.add(records)
            self.late_ids += _late(records)

    def add(self, row: int, records: Sequence[Record], ids: Ids, changes: int) -> None:
        """It has these records, their ids and so many changes, in a row more unless this is the last one."""
        if row > self.last_row:
            self._rows.append(len(records) + changes)
        self.last_row = row
        self._changes += changes
        self.messages += len(records)
        self.bytes += _bytes(records)
        self.ids.prompts |= ids.prompts
        self.ids.responses |= ids.responses
        self.ids.answered |= ids.answered

    def next_move(self, held: Held) -> Move | None:
        """What to move now; None if there is nothing to do."""
        most = JOURNAL_STEPS + min(JOURNAL_STEPS, len(held))
        over, over_bytes = self.messages + self._changes - most, self.bytes - JOURNAL_BYTES
        if self.is_starting:
            over = MAX_SLICE
        if over <= 0 and over_bytes <= 0:
            # What the last round has moved can go, unless another is under way: then that is done with its slices.
            row = self._row(SLICE_MESSAGES) if self._round is None else self._first_row - 1
            return Move(row) if row >= self._first_row else None
        if self._round is None:
            self._round = Round(sorted(held, reverse=True), self.last_row, self._changes)
            self.ids, self.old_ids = Ids(), self.ids
        elif self.late_ids and not self._round.due:
            # An earlier process has left ids without messages. What has come since then goes with them.
            self._round.due.extend(sorted(held, reverse=True))
        return self._slice(self._round, min(max(SLICE_MESSAGES, over), MAX_SLICE), over_bytes, held)

    def _slice(self, under_way: Round, least: int, least_bytes: int, held: Held) -> Move:
        """The next so many messages that are due; more, but not too many, if those have not so many bytes."""
        apart = under_way.apart
        chosen: list[Record | Sequence[Record]] = []
        messages = size = done = 0
        for session in reversed(under_way.due):
            if messages >= least and (size >= least_bytes or messages >= MAX_SLICE):
                break
            records = held.get(session)
            if isinstance(records, Record):
                chosen.append(records)
                messages += 1
                if least_bytes > 0:
                    size += len(records.data)
            elif records is not None:  # else it is gone
                its = records
                if messages + len(its) > least:
                    its = _first(its[: MAX_SLICE - messages], least - messages, least_bytes - size)
                chosen.append(its)
                messages += len(its)
                if least_bytes > 0:
                    size += _bytes(its)
                if len(its) < len(records) and self._is_due(records[len(its)]):
                    if session not in apart:
                        its_due = records[: bisect(records, 0, key=lambda record: not self._is_due(record))]
                        apart[session] = its_due[-1].seq
                        self.late_ids[:0] = _late(its_due)
                    break
            done += 1
        count = max(SLICE_MESSAGES, messages)
        ids = self.late_ids[: -count - 1 : -1]
        return Move(self._row(count), chosen, apart=apart, ids=ids, messages=messages, done=done)

    def _is_due(self, record: Record) -> bool:
        """Whether it was there when the round began."""
        message = record.number, record.message_id
        return message in self.old_ids.prompts or message in self.old_ids.responses

    @property
    def _first_row(self) -> int:
        return self.last_row - len(self._rows) + 1

    def _row(self, moved: int) -> int:
        """The last row to delete while so many messages are moved. Twice as much goes: before the next round ends."""
        row, left = self._first_row - 1, 2 * moved
        for size in self._rows:
            if row >= self._done_row or left <= 0:
                break
            row += 1
            left -= size
        return row

    def moved(self, move: Move, size: int) -> None:
        """The tables have this part of it, of so many bytes."""
        while self._first_row <= move.row:
            self._rows.popleft()
        self.messages -= move.messages
        self.bytes -= size
        del self.late_ids[len(self.late_ids) - len(move.ids) :]
        if self._round is not None:
            due = self._round.due
            del due[len(due) - move.done :]
            if not due and not self.late_ids:
                self._end(self._round)

    def forget(self, left: Sequence[Record]) -> None:
        """A session is gone, of which it had these."""
        self.messages -= len(left)
        self.bytes -= _bytes(left)
        self._changes += len(left)  # until a round ends they are in its rows all the same, and their ids in memory

    def forget_ids(self, gone: Collection[int]) -> None:
        """These sessions are gone: the tables need no ids of theirs."""
        if gone and self.late_ids:
            self.late_ids = [row for row in self.late_ids if row[0] not in gone]

    def _end(self, ended: Round) -> None:
        self._done_row = ended.row
        self._changes -= ended.changes
        self._round = None
        self.old_ids = Ids()


def _first(records: Sequence[Record], least: int, least_bytes: int) -> Sequence[Record]:
    """The first so many of them, or more if those have not so many bytes."""
    count = max(0, least)
    size = _bytes(records[:count])
    while size < least_bytes and count < len(records):
        size += len(records[count].data)
        count += 1
    return records[:count]


def _late(records: Sequence[Record]) -> list[IdRow]:
    """The ids of these records, of one session, the next one last."""
    rows: list[IdRow] = [
        (record.number, record.message_id, record.seq if record.kind is PROMPT else record.fingerprint)
        for record in records
    ]
    rows.sort(key=itemgetter(1), reverse=True)
    return rows


def _bytes(records: Sequence[Record]) -> int:
    return sum([len(record.data) for record in records])
