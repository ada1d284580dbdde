"""One connection and one thread that write: many operations, one transaction, one wait for the disk.

Whatever waits at the moment is done in one transaction and answered only after its commit (group commit): a single
writer waits for one fsync, sixty-four writers wait for the same one together.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from relay.errors import RelayError, StoreUnavailable

MAX_GROUP = 512
"""So many operations at most in one transaction: the first of them waits for the last."""

T = TypeVar("T")
Step = Callable[[sqlite3.Connection], T]
_Waiting = tuple[Step[Any], "asyncio.Future[Any]", Callable[[Any], None]]


class GroupWriter:
    """Runs steps inside transactions, in the order in which they were given."""

    def __init__(self, connection: sqlite3.Connection, on_rollback: Step[None]) -> None:
        """`on_rollback` is run after a failed transaction, to read again what steps had remembered outside of it."""
        self._connection = connection
        self._on_rollback = on_rollback
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.healthy = True
        """Whether the last transaction was kept."""

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, step: Step[T], after_commit: Callable[[T], None] = lambda _: None) -> asyncio.Future[T]:
        """Run `step` in the next transaction; the future has its result once that is committed.

        A step looks before it writes: if it raises a RelayError it has changed nothing. `after_commit` is called on the
        event loop, for each step in its turn, even if nobody waits for the result any more.
        Raises StoreUnavailable, through the future, if the transaction could not be kept.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put((step, future, after_commit))
        return future

    async def close(self) -> None:
        """Finish what was submitted, then end."""
        self._waiting.put(None)
        await self._ended

    def _run(self) -> None:
        connection = self._connection
        ending = False
        while not ending:
            group = [self._waiting.get()]
            while len(group) < MAX_GROUP and not self._waiting.empty():
                group.append(self._waiting.get())
            ending = None in group
            steps = [waiting for waiting in group if waiting is not None]
            if steps:
                results = self._commit(connection, [step for step, _, _ in steps])
                self._loop.call_soon_threadsafe(_answer, steps, results)
        connection.close()
        self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def _commit(self, connection: sqlite3.Connection, steps: list[Step[Any]]) -> list[Any]:
        """The result of each step, or the error to be raised instead."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [_attempt(step, connection) for step in steps]
            connection.execute("COMMIT")
        except sqlite3.Error as exc:
            self.healthy = False
            self._roll_back(connection)
            error = StoreUnavailable()
            error.__cause__ = exc
            return [error] * len(steps)
        self.healthy = True
        return results

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._on_rollback(connection)
        except sqlite3.Error:
            pass  # the next BEGIN will tell


def _attempt(step: Step[Any], connection: sqlite3.Connection) -> Any:
    try:
        return step(connection)
    except RelayError as error:
        return error


def _answer(steps: list[_Waiting], results: list[Any]) -> None:
    for (_, future, after_commit), result in zip(steps, results, strict=True):
        if isinstance(result, RelayError):
            if not future.cancelled():
                future.set_exception(result)
            continue
        after_commit(result)
        if not future.cancelled():
            future.set_result(result)
