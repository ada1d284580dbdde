"""The journal of the SQLite store moves at an even pace, and neither it nor what goes with it outgrows its bounds."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from relay.store import sqlite_journal
from relay.store.base import Outcome
from relay.store.sqlite_journal import JOURNAL_BYTES, MAX_SLICE, SLICE_MESSAGES
from relay.store.sqlite_writer import MAX_GROUP
from tests.factories import a_prompt, a_response
from tests.store.moving import held, opened, rows_of, settle


@pytest.mark.parametrize("sessions", [1, 7, 5000])
async def test_memory_and_journal_are_bounded(tmp_path: Path, sessions: int) -> None:
    store = await opened(tmp_path / "relay.db")
    steps = 4_000
    most = steps + min(steps, sessions)
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=steps):
        come = 0
        for size in (*[1] * 2 * most, *[60] * 200, *[MAX_GROUP] * 60):  # rows of one message, then of many
            group = [a_prompt(f"p{n}", session_id=f"s{n % sessions}") for n in range(come, come + size)]
            assert await asyncio.gather(*map(store.add_prompt, group)) == [Outcome.KEPT] * size
            come += size
            assert store._journal.messages <= most + 2 * MAX_GROUP
            # A round moves what comes during it, too, but for the sessions whose turn is over: twice as much.
            assert len(store._journal.ids.prompts) + len(store._journal.old_ids.prompts) <= 4 * most + 4 * MAX_GROUP
            assert sum(store._journal._rows) <= 5 * most + 4 * MAX_GROUP
    assert most - MAX_SLICE <= held(store) <= most + MAX_GROUP  # one more for each session: few pages, many rows
    assert store._journal.rows == rows_of(tmp_path / "relay.db")
    found = await asyncio.gather(*(store.session(f"s{n}") for n in range(sessions)))
    assert sum(each.pending for each in found) == come
    await settle(store)
    assert held(store) == 0
    await store.close()


async def test_large_messages_do_not_fill_the_memory(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}", session_id=f"s{n % 7}")) for n in range(8_000)))
    big = "x" * 100_000
    for n in range(2 * JOURNAL_BYTES // len(big)):
        await store.add_prompt(a_prompt(f"q{n}", session_id="s8", prompt=big))
        assert store._journal.bytes <= JOURNAL_BYTES + 2 * len(big) + 1000
    await store.close()


@pytest.mark.parametrize("sessions", [1, 3, 40])
async def test_a_crash_amid_the_rounds_loses_nothing(tmp_path: Path, sessions: int) -> None:
    store = await opened(tmp_path / "relay.db")
    names = [f"s{n}" for n in range(sessions)]
    await asyncio.gather(*(store.add_prompt(a_prompt("p", session_id=name)) for name in names))
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=60, SLICE_MESSAGES=8, MAX_SLICE=16):
        for number in range(60):
            group = [a_response(f"a{number}-{n}", to="p", session_id=names[n * n % sessions]) for n in range(9)]
            group += [a_prompt(f"p{number}-{n}", session_id=names[n * number % sessions]) for n in range(3)]
            await asyncio.gather(*map(store.add_prompt, group))
            if number % 10 == 9:
                for suffix in ("", "-wal"):
                    shutil.copy(tmp_path / f"relay.db{suffix}", tmp_path / f"crashed{number}.db{suffix}")
                again = await opened(tmp_path / f"crashed{number}.db")
                for each in names:
                    wanted = await store.history(each, limit=1000, offset=0, since=None)
                    assert await again.history(each, limit=1000, offset=0, since=None) == wanted
                    assert await again.pending(each) == await store.pending(each)
                await again.close()
    await store.close()


async def test_deleted_sessions_do_not_fill_it_either(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=100):
        for _ in range(80):
            await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(20)))
            await store.delete_session("s1")
            assert len(store._journal.ids.prompts) + len(store._journal.old_ids.prompts) <= 400
            assert sum(store._journal._rows) <= 500
    await store.close()


async def test_as_much_is_moved_as_comes(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}", session_id=f"s{n % 9}")) for n in range(1000)))
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=1000):
        for number, count in enumerate((1, *[60] * 100, 200, 200, 1)):
            before = held(store)
            come = [a_prompt(f"p{number}-{n}", session_id=f"s{n % 9}") for n in range(count)]
            assert await asyncio.gather(*map(store.add_prompt, come)) == [Outcome.KEPT] * count
            moved = before + count - held(store)
            assert moved <= SLICE_MESSAGES + 200
            assert 1000 - SLICE_MESSAGES - 200 <= held(store) <= 1000 + 200
    await store.close()


@pytest.mark.parametrize("sessions", [768, 1000])
async def test_no_group_waits_for_more_than_a_slice(tmp_path: Path, sessions: int) -> None:
    """Not even if the journal is over its bound by much: by changes of sessions, or by bytes."""
    store = await opened(tmp_path / "relay.db")
    for first in range(0, 12 * MAX_GROUP, MAX_GROUP):
        group = [a_prompt(f"p{n}", session_id=f"s{n % sessions}") for n in range(first, first + MAX_GROUP)]
        await asyncio.gather(*map(store.add_prompt, group))
    for bound in ("JOURNAL_STEPS", "JOURNAL_BYTES"):
        before = held(store)
        with patch.object(sqlite_journal, bound, 100):
            await store.add_prompt(a_prompt(f"q{before}", session_id="last"))
        assert before + 1 - held(store) == MAX_SLICE  # all of some sessions, or a part of the last one's
    await store.close()


async def test_changes_of_sessions_do_not_fill_the_journal_for_ever(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    with patch.multiple(sqlite_journal, JOURNAL_STEPS=10):
        await store.add_prompt(a_prompt("p1"))
        for at_ms in range(10, 200):
            await store.touch({"s1": at_ms})
    assert rows_of(tmp_path / "relay.db") < 30
    assert held(store) == 0
    await store.close()
    store = await opened(tmp_path / "relay.db")
    assert (await store.session("s1")).active_ms == 199
    await store.close()


async def test_several_lives_do_not_fill_it_either(tmp_path: Path) -> None:
    """Each process lives too short to begin a round by itself."""
    rows = []
    with patch.multiple(sqlite_journal, SLICE_MESSAGES=2, MAX_SLICE=5):
        for life in range(5):
            store = await opened(tmp_path / "relay.db")
            assert await store.add_prompt(a_prompt(f"p{life}")) is Outcome.KEPT
            for n in range(20):
                await store.add_prompt(a_prompt(f"p{life}", session_id=f"s{n}"))
                await store.touch({"s1": 1_000_000 + 10 * life + n})
            assert await store.add_prompt(a_prompt("p0")) is Outcome.DUPLICATE
            await store.close()
            rows.append(rows_of(tmp_path / "relay.db"))
    assert max(rows) <= 2 * 20 + 1
