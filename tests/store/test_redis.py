"""What is Redis's own: the server that goes and comes, the way there, announcements between instances."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.crc import key_slot

from relay.errors import StartupError, StoreUnavailable
from relay.store import redis_connection, redis_lane, redis_link, redis_node
from relay.store.base import Entry, Outcome, Position
from relay.store.redis import RedisStore
from relay.store.redis_events import INLINE_BYTES
from relay.store.redis_url import parse_redis_url
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.store.redis_server import RedisServer, cluster, cluster_url, replica_of, replicated


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that may be harmed; what it acknowledged is on disk."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()


Connect = Callable[..., Any]


@pytest.fixture
async def connect(server: RedisServer) -> AsyncIterator[Connect]:
    """Opens stores on the server, and closes them in the end."""
    async with AsyncExitStack() as stack:

        async def connect(
            listener: Listening | None = None, *, url: str = server.url, max_pending: int = 10_000, **options: Any
        ) -> RedisStore:
            limits = msgspec.structs.replace(GENEROUS, max_pending_per_session=max_pending)
            store = RedisStore(url, limits, **options)
            await store.open(listener or Listening())
            stack.push_async_callback(store.close)
            return store

        yield connect


async def until(holds: Callable[[], object], seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen in {seconds:g} s"
        await asyncio.sleep(0.005)


async def until_healthy(store: RedisStore, seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not await healthy(store):
        assert time.monotonic() < deadline, "the store did not recover in time"
        await asyncio.sleep(0.02)


async def healthy(store: RedisStore) -> bool:
    try:
        await store.check()
    except StoreUnavailable:
        return False
    return True


async def refused(*calls: Callable[[], Awaitable[object]]) -> None:
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()


# Scripts and pipelines


async def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("SCRIPT FLUSH")
    outcomes = await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(1, 20)))
    assert outcomes == [Outcome.DUPLICATE] + [Outcome.KEPT] * 18
    assert len(await store.pending("s1")) == 19


async def test_calls_of_one_tick_travel_together(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p0"))
    before = server.info("stats")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(1, 101)))
    after = server.info("stats")
    assert after["total_commands_processed"] - before["total_commands_processed"] >= 100
    # Redis reads at most 16 KiB at a time; one read is that of INFO itself.
    size = sum(len(a_prompt(f"p{n}").data) + 1000 for n in range(1, 101))
    assert after["total_reads_processed"] - before["total_reads_processed"] <= size / 16384 + 3


async def test_calls_gather_while_every_connection_is_busy(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p0"))
    server.ask("CLIENT PAUSE", 200)
    polls = [asyncio.create_task(store.head("s1")) for _ in range(50)]
    for _ in range(20):
        await asyncio.sleep(0)
        polls += [asyncio.create_task(store.head("s1")) for _ in range(50)]
    assert {head.seq for head in await asyncio.gather(*polls)} == {1}
    assert len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_what_only_looks_goes_round_a_connection_that_is_held_up(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    monkeypatch.setattr(redis_lane, "HELD_UP_SECONDS", -1.0)
    server.ask("CLIENT PAUSE", 200)
    polls = []
    for _ in range(100):
        polls.append(asyncio.create_task(store.pending("s1")))
        await asyncio.sleep(0)
    assert {len(prompts) for prompts in await asyncio.gather(*polls)} == {1}
    assert 3 < len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_a_cancelled_call_never_leaves_its_reply_to_another(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    sessions = [f"session-{n}" for n in range(200)]
    await asyncio.gather(*(store.add_prompt(a_prompt(f"of {sid}", session_id=sid)) for sid in sessions))
    rng = random.Random(7)

    async def poll(session_id: str) -> None:
        [entry] = await store.pending(session_id)
        assert f"of {session_id}".encode() in entry.data

    def cancel_after(turns: int, task: asyncio.Task[None]) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(cancel_after, turns - 1, task)
        else:
            task.cancel()

    polls = []
    for n in range(4000):
        polls.append(asyncio.create_task(poll(sessions[n % 200])))
        if n % 2:
            cancel_after(rng.randrange(1, 6), polls[-1])
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    results = await asyncio.gather(*polls, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) > 500
    assert [result for result in results if result and not isinstance(result, asyncio.CancelledError)] == []
    await asyncio.gather(*(poll(session_id) for session_id in sessions))
    assert len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_a_connection_that_is_lost_already_is_not_used(server: RedisServer) -> None:
    connection = await redis_connection.connect(parse_redis_url(server.url), "127.0.0.1", server.port)
    assert await connection.ask(b"PING") == b"PONG"
    server.ask("CLIENT KILL", "TYPE", "normal")
    await connection.wait_closed()
    with pytest.raises(ConnectionError):
        connection.hand_over_to(lambda _: None, lambda _: None)


async def test_a_call_that_gets_no_reply_fails_in_time_and_the_next_one_works(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_lane, "CALL_SECONDS", 0.5)
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await store.pending("s1")
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert len(await store.pending("s1")) == 1


async def test_calls_that_wait_are_bounded(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await connect()
    monkeypatch.setattr(redis_node, "MAX_QUEUED", 10)
    results = await asyncio.gather(*(store.head("s1") for _ in range(11)), return_exceptions=True)
    assert [isinstance(result, StoreUnavailable) for result in results] == [False] * 10 + [True]
    assert await store.head("s1") is None


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


# The server goes and comes


async def test_a_restart_of_the_server_is_survived(server: RedisServer, connect: Connect) -> None:
    here = Listening()
    store = await connect(here)
    await store.add_prompt(a_prompt("p1"))
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.add_prompt(a_prompt("p2"))
    with pytest.raises(StoreUnavailable):
        await store.check()
    server.start()
    await until_healthy(store, 3.0)
    assert here.lost >= 1
    assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
    assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]


async def test_a_replica_takes_no_writes_and_nothing_is_half_done(
    server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("REPLICAOF", "127.0.0.1", "1")
    await refused(lambda: store.add_prompt(a_prompt("p2")), lambda: store.delete_session("s1"), store.check)
    server.ask("REPLICAOF", "NO", "ONE")
    await until_healthy(store)
    assert [entry.seq for entry in await store.pending("s1")] == [1]


async def test_a_full_server_refuses_and_changes_nothing(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("CONFIG SET", "maxmemory", "1mb")
    server.ask("CONFIG SET", "maxmemory-policy", "noeviction")
    await refused(
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt("p1", session_id="s2")),
        lambda: store.add_response(a_response("a1")),
        store.check,
    )
    assert await store.head("s2") is None
    assert len(await store.pending("s1")) == 1
    server.ask("CONFIG SET", "maxmemory", "0")
    assert await store.add_response(a_response("a1")) is Outcome.KEPT


async def test_without_a_replica_to_confirm_it_a_write_is_not_acknowledged(connect: Connect) -> None:
    here = Listening()
    store = await connect(here, wait_replicas=1)
    await (await connect()).add_prompt(a_prompt("p1"))
    await refused(
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt(session_id="new")),
        store.check,
    )
    # It stands nevertheless. Whoever reads the log sees it, so whoever listens is told, once.
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]
    assert [seq for _, _, seq in here.heard] == [1, 2]


async def test_a_replica_that_stops_confirming_is_noticed_for_duplicates_too(
    server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    replica = replica_of(server, tmp_path / "replica")
    try:
        store, other = await connect(wait_replicas=1), await connect(wait_replicas=1)
        assert await store.add_prompt(a_prompt("p1")) is Outcome.KEPT
        assert await store.add_response(a_response("a1")) is Outcome.KEPT
        replica.process.send_signal(signal.SIGSTOP)
        await refused(
            lambda: store.add_prompt(a_prompt("p2")),
            lambda: other.add_prompt(a_prompt("p2")),  # on a connection that has written nothing yet
            lambda: other.add_response(a_response("a1")),
        )
        replica.process.send_signal(signal.SIGCONT)
        assert await other.add_prompt(a_prompt("p2")) is Outcome.DUPLICATE
    finally:
        replica.process.send_signal(signal.SIGCONT)
        replica.stop()


async def test_sentinels_lead_to_the_new_master(tmp_path: Path, connect: Connect) -> None:
    with replicated(tmp_path) as servers:
        here = Listening()
        careful, store = await connect(url=servers.url, wait_replicas=1), await connect(here, url=servers.url)
        assert await careful.add_prompt(a_prompt("p1")) is Outcome.KEPT
        servers.master.kill()
        await until_healthy(store, 15)
        assert [entry.seq for entry in await store.pending("s1")] == [1]
        assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
        assert [seq for _, _, seq in here.heard] == [1, 2]
        assert here.lost >= 1


# Sessions and their list


@pytest.mark.parametrize("session_id", ["}", "{", "{}", "}{", "%", "%7D", "{a}b", "ключ", "a b:c", "{user}:1"])
async def test_all_keys_of_a_session_are_in_one_slot(server: RedisServer, connect: Connect, session_id: str) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1", session_id=session_id))
    await store.add_prompt(a_prompt("p1", session_id=session_id + "x"))
    await store.add_response(a_response("a1", session_id=session_id + "x"))
    keys = [key for key in server.ask("KEYS", "relay:{*") if not key.partition(b"}")[0].endswith(b"x")]
    assert len(keys) == 5
    assert len({key_slot(key) for key in keys}) == 1
    page = await store.sessions(limit=10, offset=0)
    assert [record.session_id for record in page.records] == [session_id, session_id + "x"]


async def test_ids_that_look_alike_when_escaped_are_different_sessions(connect: Connect) -> None:
    store = await connect()
    for n, session_id in enumerate(("}", "%7D", "%257D")):
        await store.add_prompt(a_prompt(f"p{n}", session_id=session_id))
    for session_id in ("}", "%7D", "%257D"):
        assert len(await store.pending(session_id)) == 1


async def test_a_session_that_was_never_listed_is_listed_by_the_next_write(
    server: RedisServer, connect: Connect
) -> None:
    store = await connect()
    for again in (a_prompt("p1"), a_prompt("p2"), a_response("a1")):
        await store.add_prompt(a_prompt("p1"))
        server.ask("HDEL", "relay:{s1}:meta", "r")
        server.ask("DEL", "relay:sessions")
        assert (await store.sessions(limit=10, offset=0)).total == 0
        await (store.add_response if again.fingerprint else store.add_prompt)(again)
        assert (await store.sessions(limit=10, offset=0)).total == 1
        assert server.ask("HGET", "relay:{s1}:meta", "r") == b"1"


async def test_names_without_a_session_are_dropped_from_the_list(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    for session_id in ("s1", "s2", "s3"):
        await store.add_prompt(a_prompt(session_id=session_id))
    server.ask("DEL", "relay:{s1}:meta")
    server.ask("ZADD", "relay:sessions", 99, b"00000000:s2")  # an earlier life of a session that lives
    page = await store.sessions(limit=10, offset=0)
    assert (page.total, [record.session_id for record in page.records]) == (2, ["s2", "s3"])
    server.ask("DEL", "relay:{s2}:meta")
    assert await store.collect_idle(0, keep=()) == []
    assert server.ask("ZCARD", "relay:sessions") == 1


async def test_sessions_created_in_the_same_millisecond_are_listed_in_order(connect: Connect) -> None:
    store = await connect()
    names = [f"s{n}" for n in (5, 3, 9, 1, 7)]
    for session_id in names:
        await store.add_prompt(a_prompt(session_id=session_id, now_ms=1))
    page = await store.sessions(limit=10, offset=0)
    assert [record.session_id for record in page.records] == names


async def test_two_instances_may_collect_at_once(connect: Connect) -> None:
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there)
    for n in range(50):
        await one.add_prompt(a_prompt(session_id=f"s{n}", now_ms=1))
        await one.add_response(a_response(session_id=f"s{n}", now_ms=1))
    collected = await asyncio.gather(one.collect_idle(1, keep=()), other.collect_idle(1, keep=()))
    assert sorted([*collected[0], *collected[1]]) == sorted(f"s{n}" for n in range(50))
    await until(lambda: len(here.deleted) == len(there.deleted) == 50)
    assert (await one.sessions(limit=10, offset=0)).total == 0


async def test_what_is_trimmed_leaves_nothing_behind(server: RedisServer, connect: Connect) -> None:
    store = RedisStore(server.url, msgspec.structs.replace(GENEROUS, history_max_messages=3))
    await store.open(Listening())
    for n in range(1, 11):
        await store.add_prompt(a_prompt(f"p{n}", ts=n))
    assert server.ask("XLEN", "relay:{s1}:log") == 3
    assert server.ask("LRANGE", "relay:{s1}:times", 0, -1) == [b"8", b"9", b"10"]
    held = sum(len(a_prompt(f"p{n}", ts=n).data) for n in (8, 9, 10))
    assert int(server.ask("HGET", "relay:{s1}:meta", "b")) == held
    page = await store.history("s1", limit=10, offset=1, since=8)
    assert (page.total, [entry.seq for entry in page.entries]) == (2, [10])
    await store.close()


async def test_a_message_larger_than_the_whole_history_is_pending_but_not_in_it(server: RedisServer) -> None:
    store = RedisStore(server.url, msgspec.structs.replace(GENEROUS, history_max_bytes=1000))
    await store.open(Listening())
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p2", prompt="x" * 2000))
    page = await store.read("s1", 0, limit=10, max_bytes=10**9)
    assert (page.floor, page.entries) == (2, [])
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]
    await store.add_prompt(a_prompt("p3"))
    assert [entry.seq for entry in (await store.read("s1", 2, limit=10, max_bytes=10**9)).entries] == [3]
    await store.close()


# A cluster


async def test_a_cluster_keeps_sessions_on_all_its_servers(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        here, there = Listening(), Listening()
        one, other = await connect(here, url=cluster_url(nodes)), await connect(there, url=cluster_url(nodes[:1]))
        sessions = [f"s{n}" for n in range(60)]
        await asyncio.gather(*(one.add_prompt(a_prompt(session_id=sid, prompt="x" * 20_000)) for sid in sessions))
        await asyncio.gather(*(other.add_response(a_response(session_id=sid)) for sid in sessions))
        await until(lambda: len(here.heard) == len(there.heard) == 120, 15)
        assert sorted(here.heard) == sorted(there.heard)
        assert (await other.sessions(limit=100, offset=0)).total == 60
        await other.check()
        for node in nodes:
            assert node.ask("DBSIZE") >= 5


async def test_a_slot_that_moves_to_another_server_is_followed(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        one, other = await connect(url=cluster_url(nodes)), await connect(url=cluster_url(nodes))
        await one.add_prompt(a_prompt("p1"))
        assert len(await other.pending("s1")) == 1
        slot = key_slot(b"relay:{s1}:meta")
        ids = {node.port: node.ask("CLUSTER MYID").decode() for node in nodes}
        source = next(node for node in nodes if node.ask("CLUSTER COUNTKEYSINSLOT", slot))
        target = next(node for node in nodes if node is not source)
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[source.port])
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.port])
        keys = source.ask("CLUSTER GETKEYSINSLOT", slot, 100)
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        assert await one.add_prompt(a_prompt("p2")) is Outcome.KEPT  # the way to the target has to be asked for
        for node in (target, source):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[target.port])
        assert await one.add_prompt(a_prompt("p3")) is Outcome.KEPT
        assert [entry.seq for entry in await other.pending("s1")] == [1, 2, 3]


async def test_a_cluster_with_a_server_down_recovers_with_it(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        store = await connect(url=cluster_url(nodes))
        await asyncio.gather(*(store.add_prompt(a_prompt(session_id=f"s{n}")) for n in range(20)))
        nodes[0].kill()
        await refused(store.check, lambda: store.touch({f"s{n}": 5 for n in range(20)}))
        nodes[0].start()
        await until_healthy(store, 10)


# Starting


async def test_a_server_that_does_not_answer_is_named_when_starting(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.redis.OPEN_SECONDS", 0.3)
    server.kill()
    with pytest.raises(StartupError, match=rf"no Redis answers at 127\.0\.0\.1:{server.port}"):
        await RedisStore(server.url, GENEROUS).open(Listening())
    server.start()


async def test_a_wrong_password_is_told_when_starting(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.redis.OPEN_SECONDS", 0.3)
    with pytest.raises(StartupError) as refused:
        await RedisStore(f"redis://:secret@127.0.0.1:{server.port}", GENEROUS).open(Listening())
    assert "secret" not in str(refused.value)
    assert "AUTH" in str(refused.value)


@pytest.mark.parametrize("login", [":secret", "agent:word"])
async def test_every_connection_logs_in(server: RedisServer, connect: Connect, login: str) -> None:
    server.ask("ACL SETUSER", "agent", "on", ">word", "~*", "&*", "+@all")
    server.ask("CONFIG SET", "requirepass", "secret")
    store = await connect(url=f"redis://{login}@127.0.0.1:{server.port}/1")
    await store.add_prompt(a_prompt("p1"))
    assert len(await store.pending("s1")) == 1
    clients = [client for client in server.ask("CLIENT LIST") if client["name"] == "relay"]
    assert len(clients) == 3  # one that writes, one that looks, one that hears
    assert {(client["user"], client["db"]) for client in clients} == {(login.partition(":")[0] or "default", "1")}


async def test_a_server_that_may_drop_messages_is_refused(server: RedisServer) -> None:
    server.ask("CONFIG SET", "maxmemory-policy", "allkeys-lru")
    store = RedisStore(server.url, GENEROUS)
    await store.open(Listening())  # there is no bound, so nothing is ever dropped
    await store.close()
    server.ask("CONFIG SET", "maxmemory", "100mb")
    with pytest.raises(StartupError, match="noeviction"):
        await RedisStore(server.url, GENEROUS).open(Listening())


async def test_a_server_that_is_too_old_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "OLDEST", (99, 0))
    with pytest.raises(StartupError, match=r"Use 99\.0 or newer"):
        await RedisStore(server.url, GENEROUS).open(Listening())
