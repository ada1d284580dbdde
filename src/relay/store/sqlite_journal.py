"""What the journal holds, as the writer's thread needs it: which ids are in it, and what is to be moved next.

The journal is moved in rounds, a slice with each group of messages, so that no group waits long. A round goes through
the sessions in the order of the tables: what is side by side there is moved together. When it ends, all that was in the
journal when it began is in the tables, and the rows of that time are deleted, a few at a time. Only the writer's thread
uses this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from relay.models import MessageType
from relay.store.base import NewEntry

JOURNAL_STEPS = 16_384
JOURNAL_BYTES = 8 * 1024**2
"""When the journal holds more, a round begins. Twice as much may come before it ends."""

SLICE_MESSAGES = 256
"""At least so many are moved with a group, and at least twice as many as the group has."""

SLICE_ROWS = 4
"""So many rows of the journal are deleted with a group."""

PROMPT = MessageType.PROMPT
"""By a name of its own: to look a member up in an enumeration takes as long as the rest of a line."""

Id = tuple[int, str]
"""A session's id and a message_id."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message in the journal, and what it made of its session: to keep it again needs no look around."""

    session: int
    epoch: str
    seq: int
    floor: int
    bytes: int
    pending: int
    answers: int
    """The seq of the pending prompt whose wait it ends, or 0."""
    new: NewEntry


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
    """What goes with one group: the first records of some sessions, whose ids rise, and rows that are done with."""

    records: Mapping[int, Sequence[Record]]
    row: int
    """The rows up to this one are deleted."""


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


class Journal:
    """Its records, by session, and their ids. Changed only when a transaction has been committed."""

    def __init__(self) -> None:
        self.ids = Ids()
        self.old_ids = Ids()
        """Those that came before the round under way began: when it ends, the tables have them all."""
        self.records: dict[int, list[Record]] = {}
        """By session, in the order of seq."""
        self.sizes: dict[int, tuple[int, Sequence[int]]] = {}
        """The oldest piece of some logs: the seq of its first entry, and how many bytes each has."""
        self.messages = 0
        self.bytes = 0
        self.first_row = 1
        self.last_row = 0
        self._changes = 0
        self._round: Round | None = None
        self._done_row = 0  # the last row that was moved by rounds that have ended

    def add(self, row: int, records: Sequence[Record], ids: Ids, changes: int) -> None:
        """It has a row more, with these records, their ids and so many changes."""
        self.last_row = row
        self._changes += changes
        self.messages += len(records)
        self.bytes += _bytes(records)
        self.ids.prompts |= ids.prompts
        self.ids.responses |= ids.responses
        self.ids.answered |= ids.answered
        piles = self.records
        for record in records:
            pile = piles.get(record.session)
            if pile is None:
                piles[record.session] = [record]
            else:
                pile.append(record)

    def next_move(self, coming: int) -> Move | None:
        """What to move while so many records and changes come; None if there is nothing to do."""
        if self._round is None and (self.messages + self._changes > JOURNAL_STEPS or self.bytes > JOURNAL_BYTES):
            self._round = Round(sorted(self.records, reverse=True), self.last_row, self._changes)
            self.ids, self.old_ids = Ids(), self.ids
        if self._round is None and self._done_row < self.first_row:
            return None
        room = max(SLICE_MESSAGES, 2 * coming)
        chosen: dict[int, Sequence[Record]] = {}
        for session in reversed(self._round.due if self._round else ()):
            if room <= 0:
                break
            if records := self.records.get(session, [])[:room]:
                chosen[session] = records
                room -= len(records)
        return Move(chosen, min(self._done_row, self.first_row + SLICE_ROWS - 1))

    def moved(self, move: Move) -> None:
        """The tables have this part of it."""
        self.first_row = max(self.first_row, move.row + 1)
        for session, records in move.records.items():
            self.messages -= len(records)
            self.bytes -= _bytes(records)
            pile = self.records[session]
            if len(pile) == len(records):
                del self.records[session]
            else:
                del pile[: len(records)]
        if self._round is not None:
            due = self._round.due
            while due and due[-1] not in self.records:
                due.pop()
            if not due:
                self._end(self._round)

    def forget(self, session: int) -> None:
        """The session is gone."""
        records = self.records.pop(session, ())
        self.messages -= len(records)
        self.bytes -= _bytes(records)

    def _end(self, ended: Round) -> None:
        self._done_row = ended.row
        self._changes -= ended.changes
        self._round = None
        self.old_ids = Ids()


def _bytes(records: Sequence[Record]) -> int:
    return sum([len(record.new.data) for record in records])
