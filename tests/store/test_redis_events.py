"""store/redis_events.py: what instances hear of each other, and of themselves."""

from __future__ import annotations

import asyncio
import signal

import pytest

from relay.errors import StoreUnavailable
from relay.store import redis_lane
from relay.store.base import Entry, Position
from relay.store.redis import RedisStore
from relay.store.redis_events import INLINE_BYTES
from tests.factories import Listening, a_prompt, a_response
from tests.store.redis_server import RedisServer
from tests.store.redis_waits import Connect, refused, until, until_healthy

# Announcements


async def test_two_instances_hear_of_each_other(connect: Connect) -> None:
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there)
    await one.add_prompt(a_prompt("p1"))
    await other.add_response(a_response("a1"))
    await one.delete_session("s1")
    await until(lambda: there.deleted and here.deleted)
    assert here.heard == there.heard
    assert [seq for _, _, seq in here.heard] == [1, 2]
    assert here.deleted == there.deleted == ["s1"]
    assert (here.lost, there.lost) == (0, 0)


async def test_an_instance_that_is_alone_announces_to_nobody(server: RedisServer, connect: Connect) -> None:
    here, there = Listening(), Listening()
    one = await connect(here, probe_seconds=60)
    server.ask("CONFIG RESETSTAT")
    await one.add_prompt(a_prompt("p1"))
    await one.add_response(a_response("a1"))
    assert [seq for _, _, seq in here.heard] == [1, 2]
    assert "cmdstat_publish" not in server.info("commandstats")
    other = await connect(there, probe_seconds=60)
    await one.add_prompt(a_prompt("p2"))
    await other.add_prompt(a_prompt("p3"))
    await until(lambda: len(here.heard) == 4 and len(there.heard) == 2)
    assert [seq for _, _, seq in here.heard] == [1, 2, 3, 4]
    assert [seq for _, _, seq in there.heard] == [3, 4]


async def test_a_server_that_does_not_say_who_listens_announces_everything(
    server: RedisServer, connect: Connect
) -> None:
    server.ask("ACL SETUSER", "agent", "on", ">word", "~*", "&*", "+@all", "-pubsub")
    here, there = Listening(), Listening()
    one = await connect(here, url=f"redis://agent:word@127.0.0.1:{server.port}/0")
    await connect(there)
    await one.add_prompt(a_prompt("p1"))
    await until(lambda: here.heard == there.heard != [])


async def test_entries_kept_at_the_same_time_are_announced_in_their_order(connect: Connect) -> None:
    """Out of order, every client of the session would have to go back to the log."""
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there)
    await one.add_prompt(a_prompt("p"))

    async def post(store: RedisStore, name: str) -> None:
        for n in range(40):
            size = 300 if n % 8 else INLINE_BYTES  # which is read from the log by whoever did not keep it
            await store.add_response(a_response(f"{name}-{n}", to="p", text="x" * size))

    await asyncio.gather(*(post(store, f"{place}-{n}") for place, store in enumerate((one, other)) for n in range(16)))
    await until(lambda: len(here.heard) == len(there.heard) == 1 + 2 * 16 * 40)
    for listening in (here, there):
        assert [seq for _, _, seq in listening.heard] == list(range(1, 1 + 1 + 2 * 16 * 40))


@pytest.mark.parametrize("size", [300, INLINE_BYTES])
async def test_an_entry_whose_reply_nobody_waits_for_is_announced_once(connect: Connect, size: int) -> None:
    here, there = Listening(), Listening()
    one, _ = await connect(here), await connect(there)
    await one.add_prompt(a_prompt("p0"))
    for n in range(1, 21):
        posting = asyncio.create_task(one.add_prompt(a_prompt(f"p{n}", prompt="x" * size)))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        posting.cancel()
    await one.add_prompt(a_prompt("p21"))
    head = await one.head("s1")
    assert head is not None
    await until(lambda: len(here.heard) == len(there.heard) == head.seq)
    assert [seq for _, _, seq in here.heard] == [seq for _, _, seq in there.heard] == list(range(1, head.seq + 1))


async def test_nothing_is_remembered_of_what_was_not_kept(connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p1"))
    await store.collect_idle(0, keep=())
    await store.delete_session("s1")
    await until(lambda: not store._events._said)
    assert store._events._reached.get("s1") is None


class Proxy:
    """Stands between a store and its server, and may keep what it is given to itself for a while."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._holds: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """Keep from now on whatever keeps a message."""
        self._holds = asyncio.Event()

    def release(self) -> None:
        """Pass it on, even if whoever sent it has gone."""
        assert self._holds is not None
        self._holds.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if self._holds is not None and b":times" in data:
                    await self._holds.wait()
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()


async def test_what_is_kept_after_its_reply_was_given_up_is_announced(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis believes the instance alone then, and that it will see the reply."""
    monkeypatch.setattr(redis_lane, "CALL_SECONDS", 0.3)
    here = Listening()
    proxy = Proxy(server.port)
    async with proxy as url:
        store = await connect(here, url=url)
        await store.add_prompt(a_prompt("p1"))
        proxy.hold()
        await refused(lambda: store.add_prompt(a_prompt("p2")))
        await until(lambda: here.lost)
        proxy.release()
        await until(lambda: len(here.heard) == 2)
        assert [seq for _, _, seq in here.heard] == [1, 2]
        await store.close()


async def test_what_is_kept_while_its_reply_is_given_up_is_announced(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_lane, "CALL_SECONDS", 0.3)
    here = Listening()
    store = await connect(here)
    await store.add_prompt(a_prompt("p1"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        await refused(lambda: store.add_prompt(a_prompt("p2")))
    finally:
        server.process.send_signal(signal.SIGCONT)
    await until(lambda: here.lost)
    # When the listener is told to look, it is there.
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]


class Holding(Listening):
    """Remembers the entries themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def entry_added(self, session_id: str, epoch: str, entry: Entry) -> None:
        super().entry_added(session_id, epoch, entry)
        self.entries.append(entry)


@pytest.mark.parametrize("session_id", ["s1", "a b", "ключ {x} %", "}"])
@pytest.mark.parametrize("size", [0, INLINE_BYTES // 2, INLINE_BYTES, 131_072])
async def test_an_announced_entry_is_the_one_that_was_kept(connect: Connect, session_id: str, size: int) -> None:
    here, there = Holding(), Holding()
    one, _ = await connect(here), await connect(there)
    await one.add_prompt(a_prompt("p1", session_id=session_id, prompt="x" * size, ts=1.5))
    await one.add_response(a_response("a1", session_id=session_id, text="é" * (size // 2), ts=2))
    await until(lambda: len(there.entries) == 2)
    page = await one.read(session_id, 0, limit=10, max_bytes=10**9)
    assert here.entries == there.entries == page.entries
    assert here.heard == there.heard == [(session_id, page.epoch, 1), (session_id, page.epoch, 2)]


async def test_databases_do_not_hear_of_each_other(server: RedisServer, connect: Connect) -> None:
    first, second = Listening(), Listening()
    one, other = await connect(first), await connect(second, url=server.url[:-1] + "1")
    await one.add_prompt(a_prompt("p1"))
    await other.add_prompt(a_prompt("p2"))
    assert (len(first.heard), len(second.heard)) == (1, 1)
    assert [entry.seq for entry in await other.pending("s1")] == [1]


async def test_after_every_interruption_the_listener_is_told_and_hears_again(
    server: RedisServer, connect: Connect
) -> None:
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there)
    assert (here.lost, there.lost) == (0, 0)
    for n in range(1, 4):
        server.ask("CLIENT KILL", "TYPE", "pubsub")
        await until(lambda n=n: here.lost == there.lost == n)  # type: ignore[misc]
        await one.add_prompt(a_prompt(f"p{n}"))
        await until(lambda n=n: len(there.heard) == n)  # type: ignore[misc]
    assert here.heard == there.heard
    await until_healthy(other)


async def test_nothing_is_missed_while_connections_are_killed_again_and_again(
    server: RedisServer, connect: Connect
) -> None:
    """An entry is heard, or is in the log when the listener is told to look there."""
    writer = await connect()

    class Reading(Listening):
        def __init__(self) -> None:
            super().__init__()
            self.reads: list[asyncio.Task[Position]] = []

        def announcements_lost(self) -> None:
            super().announcements_lost()
            self.reads.append(asyncio.create_task(writer.head("s1")))

        def seqs(self) -> set[int]:
            read = max((read.result().seq for read in self.reads if read.done()), default=0)
            return {*range(1, read + 1), *(seq for _, _, seq in self.heard)}

    there = Reading()
    await connect(there)
    await writer.add_prompt(a_prompt("p"))
    for n in range(300):
        if n % 50 == 25:
            server.ask("CLIENT KILL", "TYPE", "pubsub")
        await writer.add_response(a_response(f"a{n}", to="p"))
    await until(lambda: there.seqs() == set(range(1, 302)))
    assert there.lost > 0


async def test_a_connection_that_delivers_nothing_is_found_out(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there, probe_seconds=0.2)
    events = other._events
    understand = events._understand

    monkeypatch.setattr(events, "_understand", lambda *_: None)
    await until(lambda: not events.hears)
    with pytest.raises(StoreUnavailable):
        await other.check()
    monkeypatch.setattr(events, "_understand", understand)
    await until_healthy(other)
    assert there.lost >= 1
    await one.add_prompt(a_prompt("p1"))
    await until(lambda: there.heard == here.heard)
