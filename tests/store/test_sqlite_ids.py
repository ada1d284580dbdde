"""Ids of long sessions, which go to SQLite's tables by themselves: each is known at every moment, whatever happens."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from relay.models import PROMPT
from relay.store import sqlite_journal
from relay.store.base import Outcome
from relay.store.memory import MemoryStore
from relay.store.sqlite import SqliteStore
from relay.store.sqlite_journal import IdRow, Ids, Journal, Record
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.store.moving import held, opened
from tests.store.test_sqlite_groups import Call, Names, add, after_a_crash, check_accounts, fail, one_by_one, together

SLICE = 8


@pytest.fixture(autouse=True)
def short_slices() -> Iterator[None]:
    """A session soon has too much for one slice, and a round takes many groups."""
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=60, SLICE_MESSAGES=SLICE, MAX_SLICE=SLICE):
        yield


def names(count: int, seed: int = 1) -> list[str]:
    """Ids in an order that is not theirs."""
    return random.Random(seed).sample([f"id{n:04d}" for n in range(count)], count)


# The order in which they go


def records(ids: list[str]) -> list[Record]:
    return [Record(seq, PROMPT, 1, b"{}", 7, "s1", "e", 0, 2, 1, 0, each, b"", 1) for seq, each in enumerate(ids, 1)]


def full_journal(its: list[Record]) -> Journal:
    journal, ids = Journal(), Ids()
    ids.add(its)
    journal.add(1, its, ids, changes=0)
    return journal


def test_the_ids_of_a_long_session_go_in_their_order_and_no_more_of_them_than_messages() -> None:
    its = records(names(100))
    journal, moved = full_journal(its), list[IdRow]()
    left = list(its)
    journal.is_starting = True
    while left:
        move = journal.next_move({7: left})
        assert move is not None
        assert len(move.ids) <= SLICE
        assert move.apart == {7: 100}
        moved += move.ids
        journal.moved(move, 0)
        del left[: move.messages]
    assert [name for _, name, _ in moved] == sorted(record.message_id for record in its)
    assert {name: seq for _, name, seq in moved} == {record.message_id: record.seq for record in its}
    assert journal.old_ids == Ids()


def test_no_round_ends_while_ids_are_left() -> None:
    its = records(names(20))
    journal = full_journal(its)
    journal.restore(1, [20], 0, {7: its})
    journal.is_starting = True
    groups = 0
    while journal.ids.prompts or journal.old_ids.prompts:
        move = journal.next_move({})
        assert move is not None
        journal.moved(move, 0)
        groups += 1
    assert groups == 3


# That each is known


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_amid_a_round_it_is_as_in_memory(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ids = names(400, seed)
    heard = Listening()
    epochs = Names()
    memory = MemoryStore(GENEROUS, new_epoch=Names())
    store = SqliteStore(tmp_path / "0.db", GENEROUS, new_epoch=epochs)
    await memory.open(Listening())
    await store.open(heard)

    def call() -> Call:
        """Ids come again and again; most of them are of one session."""
        session_id = chance.choice(["s1", "s1", "s1", "s1", "s2"])
        what = chance.random()
        if what < 0.002:
            return lambda store: store.delete_session(session_id)
        if what < 0.6:
            return add(a_prompt(chance.choice(ids), session_id=session_id, prompt="x" * chance.randrange(30)))
        to = chance.choice(ids) if chance.random() < 0.9 else "nobody"  # the tables are asked for that
        return add(a_response(f"a{chance.choice(ids)}", to=to, session_id=session_id, text=chance.choice("xy")))

    async def pending(store: SqliteStore | MemoryStore) -> list[object]:
        return await together(store, [lambda store: store.pending("s1"), lambda store: store.pending("s2")])

    for number in range(1, 160):
        if chance.random() < 0.03:
            store = await after_a_crash(store, tmp_path / f"{number}.db", heard, GENEROUS, new_epoch=epochs)
        group = [call() for _ in range(chance.randrange(1, 12))]
        if chance.random() < 0.05:
            await fail(store, group)
        assert await together(store, group) == await one_by_one(memory, group)
        assert await pending(store) == await pending(memory)
        check_accounts(store)
    await store.close()


async def without_room(store: SqliteStore, copy: Path) -> SqliteStore:
    """A store on the files as a killed process leaves them, and a disk that takes no more ids."""
    for suffix in ("", "-wal"):
        shutil.copy(f"{store._path}{suffix}", f"{copy}{suffix}")
    await store.close()
    with closing(sqlite3.connect(copy)) as db:
        db.execute("CREATE TRIGGER refuse BEFORE INSERT ON prompt BEGIN SELECT RAISE(ABORT, 'no room'); END")
    return await opened(copy)


async def test_they_are_known_if_the_next_process_cannot_write_them(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    ids = names(100)
    for each in ids[:20]:
        await store.add_prompt(a_prompt(each))
    await store.add_response(a_response("a1", to=ids[0]))
    for each in ids[20:]:
        await store.add_prompt(a_prompt(each))
    assert store._journal.late_ids
    moved = 101 - held(store)
    assert moved > 21
    again = await without_room(store, tmp_path / "copy.db")
    with closing(sqlite3.connect(again._path)) as db:
        written = {each for [each] in db.execute("SELECT message_id FROM prompt")}
    assert written
    assert {*ids[: moved - 1]} - written
    assert {await again.add_prompt(a_prompt(each)) for each in ids} == {Outcome.DUPLICATE}
    assert await again.add_response(a_response("a1", to=ids[0])) is Outcome.DUPLICATE
    assert await again.add_response(a_response("a2", to=ids[0])) is Outcome.KEPT
    assert [prompt.seq for prompt in await again.pending("s1")][:2] == [2, 3]
    assert (await again.session("s1")).pending == 99
    await again.close()


async def test_ids_that_an_earlier_process_has_left_do_not_let_the_journal_grow(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    for each in names(300):
        await store.add_prompt(a_prompt(each))
    again = await without_room(store, tmp_path / "copy.db")
    left = len(again._journal.late_ids)
    assert left > 60
    with closing(sqlite3.connect(again._path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER refuse")
    most = []
    for first in range(0, 300, SLICE):
        await together(again, [add(a_prompt(f"p{n}")) for n in range(first, first + SLICE)])
        most.append(held(again))
    assert max(most) <= 60 + 1 + 2 * SLICE
    assert not [row for row in again._journal.late_ids if row[1].startswith("id")]
    await again.close()


async def test_each_is_written_once(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    with closing(sqlite3.connect(tmp_path / "relay.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE written (message_id TEXT)")
        db.execute("CREATE TRIGGER note BEFORE INSERT ON prompt BEGIN INSERT INTO written VALUES (new.message_id); END")
        ids = names(300)
        for each in ids:
            await store.add_prompt(a_prompt(each))
        written = [each for [each] in db.execute("SELECT message_id FROM written")]
    assert len(written) > 200
    assert len(written) == len({*written})
    await store.close()


async def test_of_a_session_that_is_deleted_amid_a_round_no_id_is_written_later(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    for each in names(100):
        await store.add_prompt(a_prompt(each))
    assert store._journal.late_ids
    await store.delete_session("s1")
    for each in names(200):
        await store.add_prompt(a_prompt(each, session_id="s2"))
    check_accounts(store)
    await store.close()


async def test_nor_is_one_after_a_crash(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    for each in names(100):
        await store.add_prompt(a_prompt(each))
    await store.delete_session("s1")
    again = await after_a_crash(store, tmp_path / "copy.db", Listening(), GENEROUS)
    check_accounts(again)
    await again.close()
