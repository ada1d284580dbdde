"""What the journal holds, as the writer's thread needs it: which ids are in it, and what is to be moved next.

A full journal is moved as fast as messages come, a slice at a time, so that no group waits long. That happens in
rounds, one after the other. A round goes through the sessions in the order of the tables: what is side by side there is
moved together. When it ends, all that was in the journal when it began is in the tables, and the rows of that time are
deleted, a few at a time. What an earlier process has left is moved before anything comes. Only the writer's thread uses
this; the records themselves are in the mirror.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

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


class Move(msgspec.Struct, frozen=True):
    """What goes with one group: the first records of some sessions, whose numbers rise, and rows that are done with."""

    records: Sequence[Record | Sequence[Record]]
    messages: int
    done: int
    """So many of the sessions that are due in this round are through with it."""
    row: int
    """The rows up to this one are deleted."""

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


class Ids(msgspec.Struct):
    """Ids of messages that the tables may not have."""

    prompts: dict[Id, int] = {}
    """The seq of each."""
    responses: dict[Id, bytes] = {}
    """The fingerprint of each."""
    answered: set[tuple[int, int]] = set()
    """The prompts, of the tables too, whose wait one of them has ended, by session and seq."""


Held = Mapping[int, Record | Sequence[Record]]
"""The records that the tables do not have, by session and in the order of seq: one, or several."""


class Journal:
    """How much it holds, and the ids in it. That changes only when a transaction has been committed.

    What `seen` has noted of one that has failed does no harm.

    A round may begin with one that fails; it goes on with the next. `held` are the records by session, as they were
    before the transaction.
    """

    def __init__(self) -> None:
        self.ids = Ids()
        self.old_ids = Ids()
        """Those that came before the round under way began: when it ends, the tables have them all."""
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

    def restore(self, last_row: int, sizes: Sequence[int], changes: int) -> None:
        """It has these rows, of so many messages and changes, from an earlier process; the records are added apart."""
        self.last_row = last_row
        self._rows.extend(sizes)
        self._changes = changes

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
            return Move((), 0, 0, row) if row >= self._first_row else None
        if self._round is None:
            self._round = Round(sorted(held, reverse=True), self.last_row, self._changes)
            self.ids, self.old_ids = Ids(), self.ids
        return self._slice(self._round.due, min(max(SLICE_MESSAGES, over), MAX_SLICE), over_bytes, held)

    def _slice(self, due: Sequence[int], least: int, least_bytes: int, held: Held) -> Move:
        """The next so many messages that are due; more, but not too many, if those have not so many bytes."""
        chosen: list[Record | Sequence[Record]] = []
        messages = size = done = 0
        for session in reversed(due):
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
                    break
            done += 1
        return Move(chosen, messages, done, self._row(max(SLICE_MESSAGES, messages)))

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
        if self._round is not None:
            due = self._round.due
            del due[len(due) - move.done :]
            if not due:
                self._end(self._round)

    def forget(self, left: Sequence[Record]) -> None:
        """A session is gone, of which it had these."""
        self.messages -= len(left)
        self.bytes -= _bytes(left)
        self._changes += len(left)  # until a round ends they are in its rows all the same, and their ids in memory

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


def _bytes(records: Sequence[Record]) -> int:
    return sum([len(record.data) for record in records])
