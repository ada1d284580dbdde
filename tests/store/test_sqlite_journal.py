"""The journal of the SQLite store and its mirror in memory: whatever is where, readers cannot tell."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from hypothesis.stateful import rule, run_state_machine_as_test

from relay.errors import StoreUnavailable
from relay.models import MessageType
from relay.store import sqlite_journal
from relay.store.base import Outcome, Store
from relay.store.memory import MemoryStore
from relay.store.sqlite import SqliteStore
from relay.store.sqlite_mirror import Mirror
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.machine import QUICK
from tests.store.backends import Backend, open_sqlite
from tests.store.moving import full, held, opened, rows_of, settle, small_pieces
from tests.store.test_any_order import StoreMachine


async def seen(store: Store) -> list[object]:
    """All that can be asked about s1."""
    pages = [await store.history("s1", limit=3, offset=offset, since=None) for offset in range(8)]
    pages += [await store.history("s1", limit=3, offset=offset, since=2) for offset in range(8)]
    logs = [await store.read("s1", after, limit=3, max_bytes=10**9) for after in range(10)]
    return [await store.pending("s1"), await store.head("s1"), await store.session("s1"), pages, logs]


def in_memory(mirror: Mirror) -> object:
    sessions = mirror.sessions.values()
    tails = {each.number: [mirror.records(each.number), mirror.waiting(each)] for each in sessions}
    return msgspec.to_builtins([mirror.sessions, tails])


async def talk(store: SqliteStore, *, settle_after: int) -> None:
    """Six prompts and three answers, of which the first so many are in the tables in the end."""
    messages = [
        a_prompt("p1", ts=1),
        a_prompt("p2", ts=3),
        a_response("a1", to="p1", ts=2),
        a_prompt("p3", ts=4),
        a_prompt("p4", ts=2.5),
        a_response("a2", to="p2", ts=9),
        a_response("a3", to="p4", ts=1),
        a_prompt("p5", ts=7),
        a_prompt("p6", ts=1),
    ]
    for number, new in enumerate(messages):
        if number == settle_after:
            await settle(store)
        add = store.add_prompt if new.kind is MessageType.PROMPT else store.add_response
        assert await add(new) is Outcome.KEPT


@pytest.mark.parametrize("settle_after", range(9))
@pytest.mark.parametrize("history_max_messages", [4, 100])
async def test_what_is_in_the_journal_and_what_is_in_the_tables_reads_as_one(
    tmp_path: Path, settle_after: int, history_max_messages: int
) -> None:
    mixed = await opened(tmp_path / "mixed.db", history_max_messages=history_max_messages)
    await talk(mixed, settle_after=settle_after)
    plain = await opened(tmp_path / "plain.db", history_max_messages=history_max_messages)
    await talk(plain, settle_after=100)
    assert (settle_after == 0) == (mixed._mirror.records(1)[0].seq == 1)
    assert await seen(mixed) == await seen(plain)
    for store in (mixed, plain):
        assert await store.add_prompt(a_prompt("p4")) is Outcome.DUPLICATE
        assert await store.add_response(a_response("a2", to="p2")) is Outcome.DUPLICATE
        assert await store.add_response(a_response("a2", to="p3")) is Outcome.CONFLICT
        assert await store.add_response(a_response("a4", to="p4")) is Outcome.KEPT
        assert await store.add_response(a_response("a5", to="p3")) is Outcome.KEPT
        assert (await store.session("s1")).pending == 2
    assert await seen(mixed) == await seen(plain)
    await mixed.close()
    await plain.close()


@pytest.mark.parametrize("settle_after", [0, 5, 100])
@pytest.mark.parametrize("room", [True, False], ids=["room", "no-room"])
async def test_a_file_that_nobody_closed_reads_the_same_again(tmp_path: Path, settle_after: int, room: bool) -> None:
    store = await opened(tmp_path / "relay.db")
    await talk(store, settle_after=settle_after)
    for suffix in ("", "-wal"):  # as a killed process leaves them
        shutil.copy(tmp_path / f"relay.db{suffix}", tmp_path / f"crashed.db{suffix}")
    with closing(sqlite3.connect(tmp_path / "crashed.db")) as other:
        if not room:
            other.execute("CREATE TRIGGER refuse BEFORE INSERT ON piece BEGIN SELECT RAISE(ABORT, 'no room'); END")
        again = await opened(tmp_path / "crashed.db")
        assert again._mirror.sessions == store._mirror.sessions
        assert again._mirror.next_id == store._mirror.next_id
        if room:
            assert (held(again), again._journal.rows, rows_of(tmp_path / "crashed.db")) == (0, 0, 0)
        else:
            assert in_memory(again._mirror) == in_memory(store._mirror)
            other.execute("DROP TRIGGER refuse")
    assert await seen(again) == await seen(store)
    await settle(again)
    assert await seen(again) == await seen(store)
    await store.close()
    await again.close()


async def test_a_session_is_not_taken_for_one_that_was_deleted_before_it(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await settle(store)
    await store.delete_session("s1")
    await store.close()
    with sqlite3.connect(tmp_path / "relay.db") as connection:  # only the deletion is left in the journal
        connection.execute("DELETE FROM journal WHERE id < (SELECT max(id) FROM journal)")
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p2"))
    with full():
        await store.add_prompt(a_prompt("p3"))
    before = await seen(store)
    await store.close()
    store = await opened(tmp_path / "relay.db")
    assert await seen(store) == before
    await settle(store)
    assert await seen(store) == before
    await store.close()


async def test_the_id_of_a_response_is_known_where_no_prompt_is(tmp_path: Path) -> None:
    """In the tables, and then in a journal that holds nothing but answers."""
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p2"))
    await store.add_response(a_response("a1", to="p1"))
    await settle(store)
    found = [
        await store.add_response(a_response("a1", to="nobody")),
        await store.add_response(a_response("a2", to="p2")),
        await store.add_response(a_response("a2", to="nobody")),
        await store.add_response(a_response("a2", to="p2")),
        await store.add_response(a_response("a3", to="p2")),
    ]
    session = await store.session("s1")
    await store.close()
    assert found == [Outcome.CONFLICT, Outcome.KEPT, Outcome.CONFLICT, Outcome.DUPLICATE, Outcome.KEPT]
    assert (session.messages, session.pending) == (5, 0)


async def test_of_a_prompt_that_was_dropped_it_is_still_known_that_it_was_answered(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db", history_max_messages=4)
    await store.add_prompt(a_prompt("p1"))
    await store.add_response(a_response("a1", to="p1"))
    for n in range(2, 9):
        await store.add_prompt(a_prompt(f"p{n}"))
    await settle(store)
    outcomes = [
        await store.add_response(a_response("a2", to="p1")),
        await store.add_prompt(a_prompt("p1")),
        await store.add_response(a_response("a3", to="p2")),  # below the floor too, but it waits
    ]
    session, pending = await store.session("s1"), await store.pending("s1")
    await settle(store)
    again = await store.pending("s1")
    await store.close()
    assert outcomes == [Outcome.KEPT, Outcome.DUPLICATE, Outcome.KEPT]
    assert (session.pending, [entry.seq for entry in pending]) == (6, list(range(4, 10)))
    assert again == pending


async def test_a_session_whose_last_message_is_more_than_its_log_may_hold_is_there_after_a_restart(
    tmp_path: Path,
) -> None:
    store = await opened(tmp_path / "relay.db", history_max_bytes=500)
    await store.add_prompt(a_prompt("p1"))
    await store.add_response(a_response("a1", to="p1", text="x" * 500))
    await settle(store)
    await store.close()
    store = await opened(tmp_path / "relay.db", history_max_bytes=500)
    found = await store.session("s1"), await store.head("s1"), await store.pending("s1")
    outcomes = (
        await store.add_response(a_response("a1", to="p1", text="x" * 500)),
        await store.add_prompt(a_prompt("p2")),
    )
    page = await store.history("s1", limit=10, offset=0, since=None)
    await store.close()
    assert (found[0].messages, found[1] and found[1].seq, found[2]) == (0, 2, [])
    assert outcomes == (Outcome.DUPLICATE, Outcome.KEPT)
    assert [entry.seq for entry in page.entries] == [3]


async def test_what_a_failed_transaction_would_have_dropped_is_dropped_later_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    store = await opened(tmp_path / "relay.db", history_max_bytes=1000)
    memory = MemoryStore(msgspec.structs.replace(GENEROUS, history_max_bytes=1000), new_epoch=lambda: "epoch")
    await memory.open(Listening())
    for n in range(6):
        for each in (store, memory):
            await each.add_prompt(a_prompt(f"p{n}", prompt="x" * 100))
        await settle(store)  # each is a part by itself
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable):
        await store.add_prompt(a_prompt("p6", prompt="x" * 900))
    store._writer._connection.execute("PRAGMA query_only = OFF")
    pages = []
    for n in range(6, 9):
        for each in (store, memory):
            assert await each.add_prompt(a_prompt(f"p{n}", prompt="x" * 100)) is Outcome.KEPT
            pages.append(await each.history("s1", limit=10, offset=0, since=None))
    await store.close()
    assert pages[::2] == pages[1::2]


async def test_what_is_dropped_from_a_log_takes_no_room_in_the_file(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db", history_max_messages=4)
    for n in range(5):
        await store.add_prompt(a_prompt(f"p{n}"))
        await store.add_response(a_response(f"a{n}", to=f"p{n}"))
        await settle(store)
    await store.close()
    db = sqlite3.connect(tmp_path / "relay.db")
    pieces = db.execute("SELECT id FROM piece ORDER BY id").fetchall()
    parts = db.execute("SELECT piece FROM part ORDER BY piece").fetchall()
    db.close()
    assert pieces == parts
    assert len(parts) == 2


async def test_a_large_message_is_written_once_and_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    big = "x" * 100_000
    await store.add_prompt(a_prompt("p1", prompt=big))
    await store.add_response(a_response("a1", to="p1", text=big))
    before = await seen(store)
    await store.close()
    [[size]] = sqlite3.connect(tmp_path / "relay.db").execute("SELECT sum(length(steps)) FROM journal")
    assert size < 1000
    store = await opened(tmp_path / "relay.db")
    assert await seen(store) == before
    await settle(store)
    assert await seen(store) == before
    [[pieces]] = sqlite3.connect(tmp_path / "relay.db").execute("SELECT count(*) FROM piece")
    assert pieces == 2
    await store.close()


async def test_a_record_in_memory_is_the_entry_that_the_tables_have(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p1", session_id="s2"))
    [in_journal], [of_another] = await store.pending("s1"), await store.pending("s2")
    await settle(store)
    [in_tables] = await store.pending("s1")
    assert type(in_journal) is not type(in_tables)
    assert in_journal == in_tables
    assert not in_journal != in_tables  # noqa: SIM202  # msgspec has an operator of its own for that
    assert hash(in_journal) == hash(in_tables)
    assert in_journal != of_another
    await store.close()


async def test_what_waits_in_a_tail_of_one_is_not_noted(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    for name in ("s1", "s2"):
        await store.add_prompt(a_prompt("p1", session_id=name))
        assert len(await store.pending(name)) == 1
    assert not store._mirror._waiting
    await store.add_prompt(a_prompt("p2"))
    assert len(await store.pending("s1")) == 2
    assert list(store._mirror._waiting) == [1]
    await store.close()


async def test_what_waits_is_known_only_of_what_is_in_memory(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await talk(store, settle_after=100)
    asked = await store.pending("s1")
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=-1, SLICE_MESSAGES=4, MAX_SLICE=4):
        await store.add_prompt(a_prompt("p7"))
    [waiting] = store._mirror._waiting.values()
    assert (list(waiting.prompts), waiting.answered) == ([8, 9, 10], {2, 5})
    assert [entry.seq for entry in await store.pending("s1")] == [*(entry.seq for entry in asked), 10]
    await store.close()


async def test_a_transaction_that_fails_leaves_memory_as_it_was(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await talk(store, settle_after=4)
    before = await seen(store), in_memory(store._mirror)
    store._writer._connection.execute("PRAGMA query_only = ON")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.add_prompt(a_prompt("p9")),
        lambda: store.add_prompt(a_prompt("p1", session_id="s2")),
        lambda: store.add_response(a_response("a9", to="p3")),
        lambda: store.delete_session("s1"),
        lambda: store.touch({"s1": 99}),
        lambda: store.renew_epoch("s1", "another"),
        lambda: store.collect_idle(10**9, keep=()),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    assert (await seen(store), in_memory(store._mirror)) == before
    store._writer._connection.execute("PRAGMA query_only = OFF")
    assert await store.add_response(a_response("a9", to="p3")) is Outcome.KEPT
    await store.close()


async def test_ids_are_known_whatever_filled_the_list_of_those_that_were_used(tmp_path: Path) -> None:
    """It begins anew with sessions that are yet to come: not with those of the transaction that has filled it."""
    with small_pieces():
        store = await opened(tmp_path / "relay.db")
        for outcome in (Outcome.KEPT, Outcome.DUPLICATE):
            for session_id in ("s1", "s2"):
                calls = [store.add_prompt(a_prompt(f"p{n}", session_id=session_id)) for n in range(12)]
                assert await asyncio.gather(*calls) == [outcome] * 12
        await store.close()


async def test_a_journal_that_cannot_be_moved_refuses_messages_and_loses_none(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(100)))
    other = sqlite3.connect(tmp_path / "relay.db")
    with other:
        other.execute("CREATE TRIGGER refuse BEFORE INSERT ON piece BEGIN SELECT RAISE(ABORT, 'no room'); END")
    for _ in range(2):
        with full(), pytest.raises(StoreUnavailable):
            await store.add_prompt(a_prompt("one more"))
    assert held(store) == len(await store.pending("s1")) == 100
    with other:
        other.execute("DROP TRIGGER refuse")
    other.close()
    await store.check()
    with full():
        assert await store.add_prompt(a_prompt("one more")) is Outcome.KEPT
    assert held(store) == 1
    assert len(await store.pending("s1")) == 101
    await store.close()


async def test_a_poll_does_not_look_again_where_all_was_answered(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await store.add_response(a_response("a1", to="p1"))
    await settle(store)
    await store.add_prompt(a_prompt("p2"))
    await settle(store)
    found = await store.pending("s1")
    assert [entry.seq for entry in found] == [3]
    with closing(sqlite3.connect(tmp_path / "relay.db", isolation_level=None)) as other:
        other.execute("UPDATE part SET waiting = 1 WHERE last = 2")  # whoever looks there finds p1
    assert await store.pending("s1") == found
    await store.close()


async def test_the_tables_are_asked_once_for_a_group_and_only_if_an_id_may_be_older(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(9)))
    await store.add_response(a_response("a1", to="p1"))
    await settle(store)
    asked: list[str] = []
    store._writer._connection.set_trace_callback(lambda said: asked.append(said) if "wanted" in said else None)
    groups = [
        [a_prompt(f"new{n}") for n in range(9)],
        [a_response("b1", to="new1"), a_response("b1", to="new1")],
        [a_prompt("new10"), a_prompt("p1"), a_prompt("p2")],
        [*(a_response(f"c{n}", to=f"p{n}") for n in range(1, 4)), a_response("d", to="no"), a_response("e", to="none")],
    ]
    questions = []
    for group in groups:
        # The writer does not mind which of both a message is given to.
        outcomes = await asyncio.gather(*map(store.add_prompt, group), return_exceptions=True)
        questions.append((outcomes.count(Outcome.KEPT), len(asked)))
        assert not any("new10" in question for question in asked)
        asked.clear()
    pending = (await store.session("s1")).pending
    await store.close()
    assert questions == [(9, 0), (1, 0), (1, 1), (3, 2)]  # the last one for prompts and for responses
    assert pending == 9 - 3 + 10 - 1


async def test_readers_who_overlap_with_a_move_see_the_log_of_one_moment(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p0"))
    await settle(store)

    async def write() -> None:
        for n in range(1, 101):
            await store.add_prompt(a_prompt(f"p{n}"))
            await store.add_response(a_response(f"a{n}", to=f"p{n - 1}"))
            await settle(store)

    writing = asyncio.create_task(write())
    while not writing.done():
        page = await store.read("s1", 0, limit=1000, max_bytes=10**9)
        assert [entry.seq for entry in page.entries] == list(range(1, len(page.entries) + 1))
        assert 1 <= len(await store.pending("s1")) <= 2
        history = await store.history("s1", limit=1000, offset=0, since=0)
        assert history.total == len(history.entries) >= len(page.entries)
    await writing
    await store.close()


class SettlingMachine(StoreMachine):
    """Moves the journal at any moment."""

    @rule()
    def settle(self) -> None:
        assert isinstance(self.store, SqliteStore)
        self.run(settle(self.store))


def test_any_order_of_calls_and_moves_leaves_the_store_as_the_model_says() -> None:
    backend = Backend("sqlite", open_sqlite)
    run_state_machine_as_test(lambda: SettlingMachine(backend), settings=QUICK)  # type: ignore[arg-type]
