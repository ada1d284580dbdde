"""Groups of the SQLite store: whatever is decided together, restarted or refused, it is as if one came after the other.

The memory store, which decides one call at a time and has neither journal nor tables, is what it is compared with.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import RelayError, StoreUnavailable
from relay.models import MessageType
from relay.store.base import NewEntry, Outcome, Store, StoreLimits
from relay.store.memory import MemoryStore
from relay.store.sqlite import SqliteStore
from relay.store.sqlite_journal import JOURNAL_BYTES
from relay.store.sqlite_mirror import Waiting
from relay.store.sqlite_writer import MAX_GROUP_BYTES
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.store.moving import full, held, settle, small_pieces

TIGHT = msgspec.structs.replace(
    GENEROUS, history_max_messages=5, history_max_bytes=700, max_pending_per_session=3, max_sessions=2
)
SESSIONS = ("s1", "s2", "s3")
Call = Callable[[Store], Awaitable[Any]]


class Names:
    """Epochs that can be compared."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"epoch {self.count}"


def add(new: NewEntry) -> Call:
    if new.kind is MessageType.PROMPT:
        return lambda store: store.add_prompt(new)
    return lambda store: store.add_response(new)


async def renew(store: Store, session_id: str) -> None:
    head = await store.head(session_id)
    await store.renew_epoch(session_id, head.epoch if head else "")


async def together(store: Store, calls: list[Call]) -> list[Any]:
    """What becomes of calls of one tick; of an error, its kind."""

    async def made(call: Call) -> Any:
        return await call(store)  # here: one may begin when it is called, and another when it is awaited

    results = await asyncio.gather(*map(made, calls), return_exceptions=True)
    return [type(result) if isinstance(result, RelayError) else result for result in results]


async def one_by_one(store: Store, calls: list[Call]) -> list[Any]:
    return [result for call in calls for result in await together(store, [call])]


async def all_of(store: Store) -> list[Any]:
    """Whatever can be asked."""
    questions: list[Call] = [lambda store: store.sessions(limit=10, offset=0)]
    for each in SESSIONS:
        questions += [
            lambda store, each=each: store.pending(each),  # type: ignore[misc]
            lambda store, each=each: store.head(each),  # type: ignore[misc]
            lambda store, each=each: store.session(each),  # type: ignore[misc]
        ]
        for n in range(4):
            questions += [
                lambda store, each=each, n=n: store.read(each, n * 3, limit=4, max_bytes=400),  # type: ignore[misc]
                lambda store, each=each, n=n: store.history(each, limit=3, offset=n, since=None),  # type: ignore[misc]
                lambda store, each=each, n=n: store.history(each, limit=3, offset=n, since=2),  # type: ignore[misc]
            ]
    return await together(store, questions)


async def after_a_crash(
    store: SqliteStore, copy: Path, listening: Listening, limits: StoreLimits = TIGHT, **same: Any
) -> SqliteStore:
    """A store on the files as a killed process leaves them."""
    for suffix in ("", "-wal"):
        shutil.copy(f"{store._path}{suffix}", f"{copy}{suffix}")
    await store.close()
    again = SqliteStore(copy, limits, **same)
    await again.open(listening)
    return again


TIMES = st.integers(1, 4)
SESSION = st.sampled_from(SESSIONS)
PROMPT_ID = st.sampled_from(["p1", "p2", "p3", "p4", "p5", "p6"])
TEXT = st.sampled_from(["", "one", "x" * 200, "x" * 800])  # the last one is more than a log may hold
MESSAGES = st.one_of(
    st.builds(a_prompt, PROMPT_ID, session_id=SESSION, prompt=TEXT, ts=TIMES, now_ms=TIMES),
    st.builds(
        a_response,
        st.sampled_from(["a1", "a2", "a3", "a4", "a5"]),
        to=PROMPT_ID,
        session_id=SESSION,
        text=TEXT,
        ts=TIMES,
        now_ms=TIMES,
    ),
).map(add)
OTHERS = st.one_of(
    st.builds(lambda each: lambda store: store.delete_session(each), SESSION),
    st.builds(lambda each, at: lambda store: store.touch({each: at}), SESSION, TIMES),
    st.builds(lambda at, keep: lambda store: store.collect_idle(at, keep=keep), TIMES, st.sets(SESSION)),
)
RENEWAL = st.builds(lambda each: [lambda store: renew(store, each)], SESSION)  # by itself: it looks before it asks
GROUP = st.lists(st.one_of(MESSAGES, MESSAGES, MESSAGES, MESSAGES, OTHERS), min_size=1, max_size=12)


FAILING = GROUP.map(lambda group: ("fail", group))
STEPS = st.lists(st.one_of(GROUP, GROUP, RENEWAL, FAILING, st.sampled_from(["move", "crash"])), max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_groups_moves_and_crashes_leave_it_as_calls_one_by_one_leave_memory(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), steps))


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_so_do_they_if_there_is_always_a_part_of_the_journal_to_be_moved(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, small_pieces():
        asyncio.run(play(Path(folder), steps))


async def play(folder: Path, steps: list[Any]) -> None:
    heard, expected = Listening(), Listening()
    epochs = Names()
    memory = MemoryStore(TIGHT, new_epoch=Names())
    store = SqliteStore(folder / "0.db", TIGHT, new_epoch=epochs)
    await memory.open(expected)
    await store.open(heard)
    for number, step in enumerate(steps, 1):
        if step == "move":
            await settle(store)
        elif step == "crash":
            store = await after_a_crash(store, folder / f"{number}.db", heard, new_epoch=epochs)
        elif isinstance(step, tuple):
            await fail(store, step[1])
        else:
            assert await together(store, step) == await one_by_one(memory, step)
        assert await all_of(store) == await all_of(memory)
        assert (heard.heard, heard.deleted) == (expected.heard, expected.deleted)
        check_accounts(store)
    await store.close()


async def fail(store: SqliteStore, calls: list[Call]) -> None:
    """Nothing can be written; whatever would have been changed is refused."""
    assert isinstance(store._new_epoch, Names)
    given = store._new_epoch.count
    store._writer._connection.execute("PRAGMA query_only = ON")
    await together(store, calls)
    store._writer._connection.execute("PRAGMA query_only = OFF")
    store._new_epoch.count = given


def check_accounts(store: SqliteStore) -> None:
    """The journal's counters, and that nothing is left of what is gone."""
    held(store)
    db = sqlite3.connect(store._path)
    pieces = {piece for [piece] in db.execute("SELECT id FROM piece")}
    parts = {piece for [piece] in db.execute("SELECT piece FROM part")}
    known = {session.number for session in store._mirror.sessions.values()}
    for table in ("part", "prompt", "response"):
        assert known >= {session for [session] in db.execute(f"SELECT session FROM {table}")}  # noqa: S608
    db.close()
    assert pieces == parts
    for number, waiting in store._mirror._waiting.items():
        anew = Waiting()
        for record in store._mirror.records(number):
            anew.add(record)
        assert number in store._mirror.tails
        assert waiting == anew


BIG = "x" * 100_000


async def with_a_journal(path: Path) -> SqliteStore:
    """A store some of whose messages are in the tables, and others, small and large, in the journal."""
    store = SqliteStore(path, GENEROUS, new_epoch=lambda: "epoch")
    await store.open(Listening())
    await together(store, [add(a_prompt(f"p{n}")) for n in range(3)])
    await settle(store)
    await together(store, [add(a_prompt(f"p{n}", prompt=BIG if n == 5 else "small")) for n in range(3, 9)])
    await store.add_response(a_response("a0", to="p0"))
    await store.add_prompt(a_prompt("r1", session_id="s3"))
    return store


LAST_GROUP = [
    add(a_prompt("q1", prompt=BIG)),
    add(a_response("b1", to="q1")),
    add(a_response("b2", to="p1")),
    add(a_prompt("q2", session_id="s2")),
    add(a_prompt("q1")),
    add(a_response("b3", to="nobody")),
]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT ON piece",
        "INSERT ON prompt",
        "INSERT ON response",
        "INSERT ON part",
        "UPDATE ON part",
        "INSERT ON session",
        "INSERT ON journal",
    ],
)
async def test_a_group_that_fails_while_the_journal_is_moved_is_refused_as_a_whole(
    tmp_path: Path, statement: str
) -> None:
    store = await with_a_journal(tmp_path / "relay.db")
    other = sqlite3.connect(tmp_path / "relay.db")
    before, mirror = await all_of(store), msgspec.to_builtins(vars(store._mirror))
    other.execute(f"CREATE TRIGGER refuse BEFORE {statement} BEGIN SELECT RAISE(ABORT, 'no room'); END")
    with full():
        for _ in range(2):
            assert await together(store, LAST_GROUP) == [StoreUnavailable] * len(LAST_GROUP)
    other.execute("DROP TRIGGER refuse")
    other.close()
    assert (await all_of(store), msgspec.to_builtins(vars(store._mirror))) == (before, mirror)
    with full():
        results = await together(store, LAST_GROUP)
    assert results[:5] == [Outcome.KEPT] * 4 + [Outcome.DUPLICATE]
    assert store._journal.messages == 4
    await store.close()


async def test_killed_at_any_statement_of_a_move_it_has_all_before_and_all_or_nothing_of_the_group(
    tmp_path: Path,
) -> None:
    store = await with_a_journal(tmp_path / "relay.db")
    before = await all_of(store)
    copies: list[Path] = []

    def copy(statement: str) -> None:
        """The writer stands still meanwhile: these are the files that a killed process leaves."""
        copies.append(tmp_path / f"{len(copies)} {statement.split()[0]}.db")
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"relay.db{suffix}", f"{copies[-1]}{suffix}")

    store._writer._connection.execute("PRAGMA cache_size = 10")  # pages go to the WAL before the commit
    store._writer._connection.set_trace_callback(copy)
    with full():
        await together(store, LAST_GROUP)
    after = await all_of(store)
    await together(store, [add(a_prompt("q3"))])  # its first statement comes after the commit
    assert len(copies) > 10
    seen = []
    for path in copies:
        again = SqliteStore(path, GENEROUS, new_epoch=lambda: "another")
        await again.open(Listening())
        seen.append(await all_of(again))
        await again.close()
    assert before != after
    assert [found == after for found in seen] == sorted(found == after for found in seen)
    assert all(found in (before, after) for found in seen)
    assert seen[-1] == after
    await store.close()


async def test_a_group_of_large_messages_takes_no_more_memory_than_the_journal(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "relay.db", GENEROUS)
    await store.open(Listening())
    results = await together(store, [add(a_prompt(f"p{n}", prompt=BIG)) for n in range(100)])
    assert results == [Outcome.KEPT] * 100
    assert store._journal.bytes <= JOURNAL_BYTES + MAX_GROUP_BYTES + len(BIG) + 1000
    assert len(await store.pending("s1")) == 100
    await store.close()
