"""What is SQLite's own: the file, its versions, its owner, its troubles."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay.errors import StartupError, StoreUnavailable
from relay.store.base import Entry, Outcome, Store
from relay.store.sqlite import READERS, SqliteStore
from relay.store.sqlite_draft import Draft
from relay.store.sqlite_file import connect, migrate, migrations
from relay.store.sqlite_writer import Step
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.store.moving import settle


async def opened(path: Path, listening: Listening | None = None) -> SqliteStore:
    store = SqliteStore(path, GENEROUS)
    await store.open(listening or Listening())
    return store


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    store = await opened(path)
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p2", ts=1.5))
    await store.add_response(a_response("a1", to="p1"))
    before = await seen(store)
    await store.close()
    store = await opened(path)
    assert await seen(store) == before
    assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
    assert await store.add_response(a_response("a1", to="p1")) is Outcome.DUPLICATE
    assert await store.add_response(a_response("a1", to="p1", text="other")) is Outcome.CONFLICT
    await store.add_prompt(a_prompt("p3"))
    head = await store.head("s1")
    assert head is not None
    assert head.seq == 4
    await store.close()


async def seen(store: Store) -> list[object]:
    history = await store.history("s1", limit=100, offset=0, since=None)
    return [await store.pending("s1"), history, await store.head("s1"), await store.session("s1")]


@pytest.mark.parametrize("version", range(len(migrations()) + 1))
async def test_a_file_of_any_earlier_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / "relay.db"
    connection = connect(path)
    migrate(connection, path, up_to=version)
    connection.close()
    store = await opened(path)
    assert await store.add_prompt(a_prompt()) is Outcome.KEPT
    await store.close()
    [[found]] = sqlite3.connect(path).execute("PRAGMA user_version")
    assert found == len(migrations())


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await (await opened(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StartupError, match="was made by a newer relay"):
        await opened(path)


async def test_a_file_of_another_program_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StartupError, match="is a database of another program"):
        await opened(path)
    text = tmp_path / "text.db"
    text.write_text("not a database at all, but long enough to look like one" * 20)
    with pytest.raises(StartupError, match="It must be a relay database, or not exist"):
        await opened(text)
    assert text.read_text().startswith("not a database")


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="The folder must exist and be writable"):
        await opened(tmp_path / "nowhere" / "relay.db")


async def test_a_second_owner_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    store = await opened(path)
    with pytest.raises(StartupError, match=r"Another relay uses .*relay\.db"):
        await opened(path)
    assert await store.add_prompt(a_prompt()) is Outcome.KEPT
    await store.close()
    await (await opened(path)).close()


async def test_commits_are_on_the_disk_when_they_return(tmp_path: Path) -> None:
    connection = connect(tmp_path / "relay.db")
    [[mode]] = connection.execute("PRAGMA journal_mode")
    [[synchronous]] = connection.execute("PRAGMA synchronous")
    connection.close()
    assert (mode, synchronous) == ("wal", 2)


async def test_a_new_file_has_large_pages(tmp_path: Path) -> None:
    await (await opened(tmp_path / "relay.db")).close()
    with closing(sqlite3.connect(tmp_path / "relay.db")) as other:
        [[size]] = other.execute("PRAGMA page_size")
    assert size == 8192


async def test_what_waits_at_the_same_moment_is_one_transaction(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    statements: list[str] = []

    def trace(draft: Draft) -> None:
        draft.db.set_trace_callback(statements.append)

    await store._writer.submit(trace)
    outcomes = await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(100)))
    assert outcomes == [Outcome.KEPT] * 100
    commits = [statement for statement in statements if statement.startswith(("INSERT INTO journal", "COMMIT"))]
    assert 2 <= len(commits) <= 5  # one of them is that of the tracing
    await store.close()


async def test_what_waits_at_the_end_is_kept(tmp_path: Path) -> None:
    """In the group that is handed over, in the one behind it, and between two groups."""
    store = await opened(tmp_path / "relay.db")
    first = asyncio.ensure_future(store.add_prompt(a_prompt("p1")))
    while store._writer._groups or not store._writer._busy:
        await asyncio.sleep(0)
    rest: list[asyncio.Future[Any]] = [asyncio.ensure_future(store.add_prompt(a_prompt(f"p{n}"))) for n in range(2, 5)]
    rest.append(asyncio.ensure_future(store.touch({"s1": 10**9})))  # no message: a group of its own
    await first
    rest.append(asyncio.ensure_future(store.add_prompt(a_prompt("p5"))))
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*rest)
    store = await opened(tmp_path / "relay.db")
    pending, session = await store.pending("s1"), await store.session("s1")
    await store.close()
    assert outcomes == [Outcome.KEPT] * 3 + [None, Outcome.KEPT]
    assert (len(pending), session.active_ms) == (5, 10**9)


async def test_who_goes_on_at_once_goes_with_those_who_have_waited(tmp_path: Path) -> None:
    """Two callers who never pause: neither is to wait for a transaction of the other's own."""
    store = await opened(tmp_path / "relay.db")

    async def talk(name: str) -> None:
        for n in range(20):
            await store.add_prompt(a_prompt(f"{name}{n}"))

    one = asyncio.create_task(talk("a"))
    while store._writer._groups or not store._writer._busy:
        await asyncio.sleep(0)  # until the first message is on its way to the disk
    await asyncio.gather(one, talk("b"))
    await store.close()
    [[rows]] = sqlite3.connect(tmp_path / "relay.db").execute("SELECT count(*) FROM journal")
    assert rows == 21


async def test_who_comes_again_one_turn_after_another_goes_with_that_one(tmp_path: Path) -> None:
    """As through the ASGI door, where the answers of a group take some turns to be sent."""
    store = await opened(tmp_path / "relay.db")

    async def talk(number: int) -> None:
        for n in range(20):
            await store.add_prompt(a_prompt(f"{number}-{n}"))
            for _ in range(number):
                await asyncio.sleep(0)

    await asyncio.gather(*(talk(number) for number in range(8)))
    await store.close()
    [[rows]] = sqlite3.connect(tmp_path / "relay.db").execute("SELECT count(*) FROM journal")
    assert rows <= 25


async def test_nobody_waits_long_for_others_who_keep_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path / "relay.db")
    writer, now, sizes = store._writer, 0.0, []
    commit = writer._commit

    def commit_and_count(group: Any) -> Any:
        sizes.append(len(group.work))
        return commit(group)

    monkeypatch.setattr(writer, "_clock", lambda: now)
    monkeypatch.setattr(writer, "_commit", commit_and_count)
    await asyncio.gather(*(store.add_prompt(a_prompt(f"together{n}")) for n in range(200)))
    coming = []
    for n in range(100):
        coming.append(asyncio.ensure_future(store.add_prompt(a_prompt(f"each in its turn{n}"))))
        now += 0.001
        await asyncio.sleep(0)
    await asyncio.gather(*coming)
    await store.close()
    assert sizes[0] == 200
    assert sizes[1] <= 8


async def test_one_refused_step_does_not_harm_its_neighbours(tmp_path: Path) -> None:
    listening = Listening()
    store = await opened(tmp_path / "relay.db", listening)
    results = await asyncio.gather(
        store.add_prompt(a_prompt("p1")),
        store.add_response(a_response("a1", to="unknown")),
        store.add_response(a_response("a2", to="p1")),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Outcome", "PromptNotFound", "Outcome"]
    assert [seq for _, _, seq in listening.heard] == [1, 2]
    await store.close()


async def test_a_write_whose_caller_has_gone_is_kept_and_announced(tmp_path: Path) -> None:
    listening = Listening()
    store = await opened(tmp_path / "relay.db", listening)
    caller = asyncio.ensure_future(store.add_prompt(a_prompt("p1")))
    await asyncio.sleep(0)
    caller.cancel()
    await store.add_prompt(a_prompt("p2"))
    assert [seq for _, _, seq in listening.heard] == [1, 2]
    await store.close()


async def test_a_failed_transaction_is_a_503_for_all_in_it_and_changes_nothing(tmp_path: Path) -> None:
    listening = Listening()
    store = await opened(tmp_path / "relay.db", listening)
    await store.add_prompt(a_prompt("p1"))

    def limit(pages: int) -> Step[object]:
        return lambda draft: draft.db.execute(f"PRAGMA max_page_count = {pages}")

    await store._writer.submit(limit(1))  # no room for another page
    big = "x" * 100_000
    results = await asyncio.gather(
        *(store.add_prompt(a_prompt(f"q{n}", session_id=f"s{n}", prompt=big)) for n in range(5)), return_exceptions=True
    )
    assert {type(result) for result in results} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable):
        await store._writer.submit(lambda draft: draft.db.execute("INSERT INTO nowhere VALUES (1)"))
    assert not store._writer.healthy
    assert len(await store.pending("s1")) == 1
    assert (await store.sessions(limit=10, offset=0)).total == 1
    await store._writer.submit(limit(1_000_000))
    await store.check()
    assert await store.add_prompt(a_prompt("q1", prompt=big)) is Outcome.KEPT
    assert len(listening.heard) == 2
    await store.close()


async def test_a_file_that_has_become_read_only_is_a_503_until_it_can_be_written_again(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable) as refused:
        await store.add_prompt(a_prompt("p2"))
    assert "readonly" in str(refused.value.__cause__)
    assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE  # which writes nothing, and so proves nothing
    with pytest.raises(StoreUnavailable):
        await store.check()
    assert [entry.seq for entry in await store.pending("s1")] == [1]
    store._writer._connection.execute("PRAGMA query_only = OFF")
    await store.check()
    assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
    await store.close()


async def test_an_error_that_nobody_foresaw_is_a_503_for_its_group_and_the_writer_goes_on(tmp_path: Path) -> None:
    listening = Listening()
    store = await opened(tmp_path / "relay.db", listening)
    await store.add_prompt(a_prompt("p1"))
    for bad in (
        store.add_prompt(a_prompt("p2", now_ms="soon")),  # type: ignore[arg-type]
        store._writer.submit(lambda _: 1 // 0),
    ):
        with pytest.raises(StoreUnavailable) as refused:
            await asyncio.wait_for(bad, 5)
        assert isinstance(refused.value.__cause__, TypeError | ZeroDivisionError)
        assert not store._writer.healthy
        assert [entry.seq for entry in await store.pending("s1")] == [1]
    await asyncio.wait_for(store.check(), 5)
    assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
    assert [seq for _, _, seq in listening.heard] == [1, 2]
    await store.close()


async def test_a_listener_that_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    class Failing(Listening):
        def entry_added(self, session_id: str, epoch: str, entry: Entry) -> None:
            super().entry_added(session_id, epoch, entry)
            raise ZeroDivisionError

        def session_deleted(self, session_id: str) -> None:
            raise ZeroDivisionError

    failing, told = Failing(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["exception"]))
    store = await opened(tmp_path / "relay.db", failing)
    calls = [store.add_prompt(a_prompt("p1")), store.add_prompt(a_prompt("p2")), store.add_prompt(a_prompt("p1"))]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls), 5)
    assert outcomes == [Outcome.KEPT, Outcome.KEPT, Outcome.DUPLICATE]
    await asyncio.wait_for(store.delete_session("s1"), 5)
    assert [seq for _, _, seq in failing.heard] == [1, 2]
    assert [type(error) for error in told] == [ZeroDivisionError] * 3
    await store.close()


async def test_what_comes_after_the_end_is_refused(tmp_path: Path) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await settle(store)
    await store.close()
    for call in (store.add_prompt(a_prompt("p2")), store.touch({"s1": 2}), store.pending("s1")):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(call, 5)


async def test_a_read_under_way_ends_before_the_store_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1"))
    await settle(store)
    readers = [store._readers.get_nowait() for _ in range(READERS)]
    reads = [asyncio.create_task(store.pending("s1")) for _ in range(5)]
    await asyncio.sleep(0)
    end_of_writer = store._writer.close

    async def end_and_give_readers_back() -> None:
        await end_of_writer()
        for reader in readers:  # whoever waits for one has not had a turn yet when the store goes on with its end
            store._readers.put_nowait(reader)

    monkeypatch.setattr(store._writer, "close", end_and_give_readers_back)
    await store.close()
    assert [len(await asyncio.wait_for(read, 5)) for read in reads] == [1] * 5


async def test_a_journal_that_cannot_be_read_is_named_and_the_file_let_go(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    store = await opened(path)
    await store.add_prompt(a_prompt("p1"))
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE journal SET steps = x'c1'")
    for _ in range(2):
        with pytest.raises(StartupError, match=r"relay\.db cannot be read"):
            await asyncio.wait_for(opened(path), 5)


async def test_a_log_trimmed_during_a_read_still_gives_what_it_holds(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "relay.db", msgspec.structs.replace(GENEROUS, history_max_messages=3))
    await store.open(Listening())
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(3)))
    await settle(store)
    readers = [store._readers.get_nowait() for _ in range(READERS)]
    log = asyncio.create_task(store.read("s1", 0, limit=2, max_bytes=10**9))
    history = asyncio.create_task(store.history("s1", limit=2, offset=0, since=None))
    await asyncio.sleep(0)  # both have asked, and nobody answers yet
    await asyncio.gather(*(store.add_prompt(a_prompt(f"q{n}")) for n in range(3)))
    for reader in readers:
        store._readers.put_nowait(reader)
    page = await log
    assert (page.floor, [entry.seq for entry in page.entries]) == (3, [4, 5])
    assert ((await history).total, [entry.seq for entry in (await history).entries]) == (3, [4, 5])
    await store.close()


@pytest.mark.parametrize(("since", "total"), [(10**30, 0), (-(10**30), 1), (1e300, 0), (0.5, 1)])
async def test_numbers_beyond_what_sqlite_can_take_are_compared_all_the_same(
    tmp_path: Path, since: float, total: int
) -> None:
    store = await opened(tmp_path / "relay.db")
    await store.add_prompt(a_prompt("p1", ts=1))
    await settle(store)
    assert (await store.history("s1", limit=10, offset=0, since=since)).total == total
    page = await store.history("s1", limit=10, offset=10**30, since=since)
    assert (page.total, page.entries) == (total, [])
    await store.close()
