"""A SQLite store whose journal can be looked into, and is moved when a test wants it, instead of when it is full."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec

from relay.store import sqlite_journal, sqlite_move, sqlite_seen, sqlite_tables
from relay.store.sqlite import SqliteStore
from tests.factories import GENEROUS, Listening


async def opened(path: Path, **limits: int) -> SqliteStore:
    """A store that holds much, unless the limits say less."""
    generous = msgspec.structs.replace(GENEROUS, max_pending_per_session=100_000, **limits)
    store = SqliteStore(path, generous, new_epoch=lambda: "epoch")
    await store.open(Listening())
    return store


def rows_of(path: Path) -> int:
    """How many the journal has in the file."""
    with closing(sqlite3.connect(path)) as db:
        [[rows]] = db.execute("SELECT count(*) FROM journal")
    return int(rows)


def held(store: SqliteStore) -> int:
    """How many messages are in memory; the journal's own account must agree."""
    records = [record for number in store._mirror.tails for record in store._mirror.records(number)]
    assert store._journal.messages == len(records)
    assert store._journal.bytes == sum(len(record.data) for record in records)
    return len(records)


async def settle(store: SqliteStore) -> None:
    """Move all of the journal to the tables."""
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=-1, SLICE_MESSAGES=10**6, MAX_SLICE=10**6):
        for _ in range(2):  # the rows are deleted with the group that comes after the round
            await store._writer.submit(lambda draft: draft.save(draft.sessions()[:1]))


@contextmanager
def full() -> Iterator[None]:
    """The journal counts as full: with the next group it is moved."""
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=-1):
        yield


@contextmanager
def small_pieces() -> Iterator[None]:
    """Everything is full after a few messages and moved in slices that are smaller than most; ids share places."""
    with (
        patch.multiple(sqlite_journal, JOURNAL_STEPS=4, JOURNAL_BYTES=500, SLICE_MESSAGES=2, MAX_SLICE=3),
        patch.multiple(sqlite_move, PIECE_ENTRIES=3),
        patch.multiple(sqlite_seen, PLACES=8, MOST_IDS=4),
        patch.multiple(sqlite_tables, LARGE_BYTES=200, MAX_ROWS=2),
    ):
        yield
