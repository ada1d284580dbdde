"""One connection and one thread that write: many operations, one transaction, one wait for the disk.

Whatever waits at the moment is done in one transaction and answered only after its commit (group commit): a single
writer waits for one fsync, sixty-four writers wait for the same one together. A group goes to the thread as a whole and
comes back as a whole. The next one gathers meanwhile, and goes when the event loop has taken note of this one and its
callers have their answers: so nothing in the mirror that the thread goes by changes while it is at work, and there is
nothing to lock.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from relay.errors import RelayError, StoreUnavailable
from relay.store.base import Entry, NewEntry, Outcome
from relay.store.later import Later
from relay.store.sqlite_draft import Draft
from relay.store.sqlite_journal import Record

MAX_GROUP = 512
"""So many operations at most in one transaction: the first of them waits for the last."""

MAX_GROUP_BYTES = 4 * 1024**2
"""A group that has reached this takes no more: all of it stays in memory until the journal is moved."""

GATHER_SECONDS = 0.004
"""So long a group waits at most for those who come back: about as long as a transaction takes. Who comes may always be
somebody else, for whom nobody is to wait."""

T = TypeVar("T")
Step = Callable[[Draft], T]
AfterCommit = Callable[[Any], None]


class _Group:
    """Messages to keep, or steps; and whom to tell of each."""

    __slots__ = ("after_commit", "are_messages", "bytes", "laters", "work")

    def __init__(self, *, are_messages: bool) -> None:
        self.are_messages = are_messages
        self.bytes = 0
        self.work: list[Any] = []
        self.laters: list[Later[Any]] = []
        self.after_commit: dict[int, AfterCommit] = {}
        """By the number of the step."""


class GroupWriter:
    """Runs operations inside transactions, in the order in which they were given."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        new_draft: Callable[[sqlite3.Connection], Draft],
        announce: Callable[[str, str, Entry], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._new_draft = new_draft
        self._announce = announce
        self._groups: deque[_Group] = deque()
        self._handed: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._busy = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        self.healthy = True
        """Whether the last transaction was kept; one that had nothing to write does not tell."""

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def keep(self, new: NewEntry) -> Later[Outcome]:
        """Keep a message in the next transaction and announce it; otherwise as `submit`."""
        later: Later[Outcome] = Later(loop=self._loop)
        group = self._groups[-1] if self._groups else None
        if group is None or not group.are_messages or len(group.work) >= MAX_GROUP or group.bytes >= MAX_GROUP_BYTES:
            group = self._begin(later, are_messages=True)
        if group is not None:
            group.bytes += len(new.data)
            group.work.append(new)
            group.laters.append(later)
        return later

    def submit(self, step: Step[T], after_commit: Callable[[T], None] | None = None) -> Later[T]:
        """Run `step` in the next transaction; the result is there once that is committed.

        A step looks before it writes: if it raises a RelayError it has changed nothing. `after_commit` is called on
        the event loop, for each step in its turn, even if nobody waits for the result any more. Whoever does gets
        StoreUnavailable if the transaction could not be kept, or if the writer was closed and has no further group.
        """
        later: Later[T] = Later(loop=self._loop)
        group = self._groups[-1] if self._groups else None
        if group is None or group.are_messages or len(group.work) >= MAX_GROUP:
            group = self._begin(later, are_messages=False)
        if group is not None:
            if after_commit is not None:
                group.after_commit[len(group.work)] = after_commit
            group.work.append(step)
            group.laters.append(later)
        return later

    def _begin(self, later: Later[Any], *, are_messages: bool) -> _Group | None:
        """A further group; None if there is none to come, and `later` has been told so."""
        if self._closing:
            later.fail(StoreUnavailable())
            return None
        group = _Group(are_messages=are_messages)
        self._groups.append(group)
        if not self._busy:
            self._busy = True
            # Not at once: others of this tick come along.
            self._loop.call_soon(self._hand_over)
        return group

    async def close(self) -> None:
        """Finish what was submitted, then end."""
        self._closing = True
        if not self._busy:
            self._hand_over()
        await self._ended

    def _hand_over(self) -> None:
        if self._groups:
            self._busy = True
            self._handed.put(self._groups.popleft())
        else:
            self._busy = False
            if self._closing:
                self._handed.put(None)

    def _run(self) -> None:
        while (group := self._handed.get()) is not None:
            draft, results = self._commit(group)
            self._loop.call_soon_threadsafe(self._answer, group, draft, results)
        self._connection.close()
        self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def _commit(self, group: _Group) -> tuple[Draft | None, list[Any]]:
        """The draft, if it was kept, and the result of each operation, or the error to be raised instead."""
        connection = self._connection
        changes = connection.total_changes
        try:
            draft = self._new_draft(connection)
            if group.are_messages:
                results: list[Any] = draft.add(group.work)
                draft.write()
            else:
                draft.begin()
                results = [_attempt(step, draft) for step in group.work]
                draft.end()
            draft.commit()
        except Exception as exc:  # whatever it is: the thread must live to write the next group
            self.healthy = False
            _roll_back(connection)
            error = StoreUnavailable()
            error.__cause__ = exc
            return None, [error] * len(group.work)
        if connection.total_changes != changes:
            self.healthy = True
        return draft, results

    def _answer(self, group: _Group, draft: Draft | None, results: list[Any]) -> None:
        kept = draft.apply() if draft is not None else ()
        try:
            self._tell(group, kept, results)
        finally:
            # When the answers are written and what has come meanwhile is read: whoever goes on at once then goes with
            # the next group. Half of the callers would otherwise always wait for the other half.
            until = self._clock() + GATHER_SECONDS
            self._loop.call_soon(self._loop.call_soon, self._gather, len(group.work), 0, until)

    def _gather(self, answered: int, there: int, until: float) -> None:
        """Hand the next group over; not yet if more have come since the last look, but fewer than were answered."""
        waiting = len(self._groups[0].work) if self._groups else 0
        if there < waiting < answered and self._clock() < until:
            self._loop.call_soon(self._gather, answered, waiting, until)
        else:
            self._hand_over()

    def _tell(self, group: _Group, kept: Sequence[Record], results: list[Any]) -> None:
        """First the listener, then the callers."""
        for record in kept:
            try:
                self._announce(record.session_id, record.epoch, record)
            except Exception as error:  # noqa: PERF203  # it must not keep the callers of the group waiting
                self._complain(error)
        for number, after_commit in group.after_commit.items():
            if not isinstance(results[number], RelayError):
                try:
                    after_commit(results[number])
                except Exception as error:
                    self._complain(error)
        for later, result in zip(group.laters, results, strict=True):
            if isinstance(result, RelayError):
                later.fail(result)
            else:
                later.answer(result)

    def _complain(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a listener of the store has failed", "exception": error})


def _attempt(act: Callable[[Any], T], subject: Any) -> T | RelayError:
    try:
        return act(subject)
    except RelayError as error:
        return error


def _roll_back(connection: sqlite3.Connection) -> None:
    # If this fails the next BEGIN will tell; and while a transaction is open, a group is not written without one.
    with suppress(Exception):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
