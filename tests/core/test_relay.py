"""core/relay.py: the rules, with a clock and ids of the test's own, and a store whose every call can be held up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from typing import Any

import pytest

from relay.core import relay as relay_module
from relay.core.hub import Hub
from relay.core.observer import Observer, WakeCause
from relay.core.relay import ClientGone, Relay
from relay.core.subscriber import Frame, Subscriber
from relay.errors import ResponseConflict, SessionNotFound, StoreUnavailable, TooManyPolls
from relay.store.base import Entry, LogPage
from relay.store.memory import MemoryStore
from relay.wire import NewPrompt, NewResponse
from tests.factories import GENEROUS, some_settings


class SlowStore(MemoryStore):
    """A store that takes its time: other tasks run between a call and its answer, as with a real one."""

    async def pending(self, session_id: str) -> Sequence[Entry]:
        prompts = await super().pending(session_id)
        await asyncio.sleep(0)
        return prompts

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        page = await super().read(session_id, after, limit=limit, max_bytes=max_bytes)
        await asyncio.sleep(0)
        return page


class Causes(Observer):
    """Remembers why polls woke."""

    def __init__(self) -> None:
        self.causes: list[WakeCause] = []

    def poll_woken(self, cause: WakeCause) -> None:
        self.causes.append(cause)


def new_response(
    client_msg_id: str, text: str, assistant_msg_id: str | None = None, session_id: str = "s1"
) -> NewResponse:
    return NewResponse(session_id=session_id, assistant_msg_id=assistant_msg_id, client_msg_id=client_msg_id, text=text)


class World:
    """A relay and everything it was given."""

    def __init__(self, store: MemoryStore, settings: dict[str, Any]) -> None:
        self.now_ms = 1_000_000
        self.observer = Causes()
        self.hub = Hub(some_settings(**settings), self.observer)
        ids = count(1)
        self.store = store
        self.relay = Relay(
            store,
            self.hub,
            some_settings(**settings),
            self.observer,
            now_ms=lambda: self.now_ms,
            new_id=lambda: f"id-{next(ids)}",
        )

    async def ask(self, prompt: str = "Hello", session_id: str = "s1") -> str:
        return await self.relay.submit_prompt(NewPrompt(session_id=session_id, prompt=prompt))

    async def answer(self, client_msg_id: str, text: str, session_id: str = "s1") -> None:
        await self.relay.post_response(new_response(client_msg_id, text, session_id=session_id))

    def never(self, tell: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def poll(self, seconds: float = 30) -> list[str]:
        entries = await self.relay.wait_pending("s1", seconds, self.never)
        return [json.loads(entry.data)["client_msg_id"] for entry in entries]


@pytest.fixture(params=[MemoryStore, SlowStore])
def store_class(request: pytest.FixtureRequest) -> type[MemoryStore]:
    store_class: type[MemoryStore] = request.param
    return store_class


async def make_world(store_class: type[MemoryStore] = MemoryStore, **settings: Any) -> World:
    world = World(store_class(GENEROUS), settings)
    await world.store.open(world.hub)
    return world


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


# Prompts and responses


async def test_ids_and_times_are_given_where_they_are_missing() -> None:
    world = await make_world()
    assert await world.ask() == "id-1"
    posted = await world.relay.post_response(new_response("id-1", "Hi"))
    assert (posted.assistant_msg_id, posted.recipients) == ("id-2", 0)
    page = await world.relay.history("s1", limit=10, offset=0, since=None)
    assert [entry.ts for entry in page.entries] == [1_000_000, 1_000_000]


async def test_a_response_that_differs_under_the_same_id_is_a_conflict() -> None:
    world = await make_world()
    client_msg_id = await world.ask()
    await world.relay.post_response(new_response(client_msg_id, "one", "a1"))
    await world.relay.post_response(new_response(client_msg_id, "one", "a1"))
    with pytest.raises(ResponseConflict):
        await world.relay.post_response(new_response(client_msg_id, "two", "a1"))


# Polls


async def test_a_prompt_between_the_read_and_the_wait_is_not_missed(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    for _ in range(200):
        await world.answer(await world.ask(), "x")
        poll = asyncio.create_task(world.poll())
        await asyncio.sleep(0)  # with a slow store the poll has read, and not yet begun to wait
        client_msg_id = await world.ask()
        assert await asyncio.wait_for(poll, 5) == [client_msg_id]
        await world.answer(client_msg_id, "x")


async def test_a_poll_that_wakes_for_nothing_waits_on() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    poll = asyncio.create_task(world.poll())
    await settle()
    await world.answer(await world.ask(), "answered before the poll could look")
    await settle()
    assert not poll.done()
    client_msg_id = await world.ask()
    assert await asyncio.wait_for(poll, 5) == [client_msg_id]
    assert world.observer.causes == [WakeCause.PROMPT, WakeCause.PROMPT]


async def test_a_lost_announcement_is_healed_by_the_safety_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "SAFETY_SECONDS", 0.01)
    world = await make_world()
    await world.answer(await world.ask(), "x")
    poll = asyncio.create_task(world.poll())
    await settle()
    monkeypatch.setattr(Hub, "entry_added", lambda *_: None)
    client_msg_id = await world.ask()
    assert await asyncio.wait_for(poll, 5) == [client_msg_id]
    assert set(world.observer.causes) == {WakeCause.SAFETY}


async def test_a_poll_ends_with_nothing_when_its_time_is_up() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    assert await world.poll(0) == []
    assert await world.poll(0.01) == []
    assert world.observer.causes == [WakeCause.TIMEOUT]


async def test_a_poll_ends_when_its_caller_hangs_up() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    told: list[Callable[[], None]] = []
    taken_back: list[bool] = []

    def when_gone(tell: Callable[[], None]) -> Callable[[], None]:
        told.append(tell)
        return lambda: taken_back.append(True)

    poll = asyncio.create_task(world.relay.wait_pending("s1", 30, when_gone))
    await settle()
    told[0]()
    with pytest.raises(ClientGone):
        await asyncio.wait_for(poll, 5)
    assert taken_back == [True]
    assert not world.hub.listened()


async def test_a_poll_of_a_session_that_is_deleted_meanwhile_is_not_found() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    poll = asyncio.create_task(world.poll())
    await settle()
    await world.relay.delete_session("s1")
    with pytest.raises(SessionNotFound):
        await asyncio.wait_for(poll, 5)
    assert not world.hub.listened()


async def test_a_poll_of_a_session_that_is_deleted_and_made_again_at_once_is_not_found() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    poll = asyncio.create_task(world.poll())
    await settle()
    await world.relay.delete_session("s1")
    await world.ask("another conversation")
    with pytest.raises(SessionNotFound):
        await asyncio.wait_for(poll, 5)


async def test_a_drained_poll_ends_with_nothing() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    poll = asyncio.create_task(world.poll())
    await settle()
    world.hub.drain()
    assert await asyncio.wait_for(poll, 5) == []
    assert await asyncio.wait_for(world.poll(), 5) == []


async def test_a_cancelled_poll_leaves_nothing_behind(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    await world.answer(await world.ask(), "x")
    for steps in range(6):
        poll = asyncio.create_task(world.poll())
        for _ in range(steps):
            await asyncio.sleep(0)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await settle()
        assert not world.hub.listened()
        assert len(asyncio.all_tasks()) == 1


async def test_only_polls_that_would_wait_are_refused_when_there_are_too_many() -> None:
    world = await make_world(max_waiting_polls=1)
    await world.answer(await world.ask(), "x")
    waiting = asyncio.create_task(world.poll())
    await settle()
    with pytest.raises(TooManyPolls):
        await world.poll()
    client_msg_id = await world.ask()
    assert await world.poll() == [client_msg_id]
    assert await waiting == [client_msg_id]


# Connected clients


async def follow(relay: Relay, subscriber: Subscriber) -> AsyncIterator[Frame]:
    """A client's frames, as the doors send them: what is queued, or what it missed, until it is closed."""
    told = asyncio.Event()
    subscriber.waker = told.set
    while True:
        told.clear()
        for frame in subscriber.take():
            yield frame
        if subscriber.close_code is not None:
            return
        if not subscriber.live:
            async for frame in relay.catch_up(subscriber):
                yield frame
        else:
            await told.wait()


class Reading:
    """A client that reads everything it is given."""

    def __init__(self, world: World, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.texts: list[str] = []
        self.task = asyncio.create_task(self._read(world))

    async def _read(self, world: World) -> None:
        async for frame in follow(world.relay, self.subscriber):
            self.texts.append(json.loads(frame.data)["data"]["text"])


async def test_a_client_gets_what_comes_after_it_joined_and_nothing_before(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    client_msg_id = await world.ask()
    await world.answer(client_msg_id, "before")
    subscriber = await world.relay.subscribe("s1")
    await world.answer(client_msg_id, "between")
    client = Reading(world, subscriber)
    await settle()
    await world.answer(client_msg_id, "after")
    await settle()
    assert client.texts == ["between", "after"]
    client.task.cancel()


async def test_joining_under_traffic_loses_and_doubles_nothing(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    client_msg_id = await world.ask()
    clients: list[tuple[int, Reading]] = []
    for n in range(500):
        if n % 10 == 0:
            clients.append((n, Reading(world, await world.relay.subscribe("s1"))))
        await world.answer(client_msg_id, str(n))
        if n % 3 == 0:
            await asyncio.sleep(0)
    await settle()
    while not all(client.subscriber.live for _, client in clients):
        await asyncio.sleep(0)
    for joined, client in clients:
        assert client.texts == [str(n) for n in range(joined, 500)]
        client.task.cancel()


async def test_a_client_that_falls_behind_catches_up_in_order(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    client_msg_id = await world.ask()
    subscriber = await world.relay.subscribe("s1")
    frames = follow(world.relay, subscriber)
    await world.answer(client_msg_id, "0")
    texts = [json.loads((await anext(frames)).data)["data"]["text"]]
    for n in range(1, 1000):
        await world.answer(client_msg_id, str(n))
        if n % 100 == 0:
            texts.append(json.loads((await anext(frames)).data)["data"]["text"])
    while len(texts) < 1000:
        texts.append(json.loads((await anext(frames)).data)["data"]["text"])
    assert texts == [str(n) for n in range(1000)]


async def test_lost_doubled_and_late_announcements_lose_and_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(SlowStore)
    client_msg_id = await world.ask()
    client = Reading(world, await world.relay.subscribe("s1"))
    await settle()
    heard = Hub.entry_added
    late: list[tuple[Any, ...]] = []
    turns = count()

    def unreliable(hub: Hub, *announcement: Any) -> None:
        turn = next(turns) % 7
        if turn == 0:
            return
        if turn == 1:
            late.append(announcement)
            return
        heard(hub, *announcement)
        if turn == 2:
            heard(hub, *announcement)
        if turn == 3:
            for old in late:
                heard(hub, *old)
            late.clear()

    monkeypatch.setattr(Hub, "entry_added", unreliable)
    for n in range(500):
        await world.answer(client_msg_id, str(n))
        if n % 4 == 0:
            await asyncio.sleep(0)
    monkeypatch.undo()
    await world.answer(client_msg_id, "last")
    while not client.texts or client.texts[-1] != "last":
        await asyncio.sleep(0)
    assert client.texts == [*map(str, range(500)), "last"]
    client.task.cancel()


async def test_a_client_closed_by_deletion_ends_even_while_lagging(store_class: type[MemoryStore]) -> None:
    world = await make_world(store_class)
    client_msg_id = await world.ask()
    for steps in range(6):
        subscriber = await world.relay.subscribe("s1")
        await world.answer(client_msg_id, "x")
        client = Reading(world, subscriber)
        for _ in range(steps):
            await asyncio.sleep(0)
        await world.relay.delete_session("s1")
        client_msg_id = await world.ask()
        await asyncio.wait_for(client.task, 5)
        assert subscriber.close_code == 4404
        assert set(client.texts) <= {"x"}


async def test_a_deletion_nobody_announced_is_noticed_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world()
    client_msg_id = await world.ask()
    subscriber = await world.relay.subscribe("s1")
    monkeypatch.setattr(Hub, "session_deleted", lambda *_: None)
    await world.answer(client_msg_id, "x")
    await world.relay.delete_session("s1")
    client = Reading(world, subscriber)
    await asyncio.wait_for(client.task, 5)
    assert subscriber.close_code == 4404


async def test_a_client_stays_while_the_store_is_away_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "RETRY_SECONDS", 0.001)
    world = await make_world()
    client_msg_id = await world.ask()
    client = Reading(world, await world.relay.subscribe("s1"))
    await settle()
    await world.answer(client_msg_id, "before")
    read = MemoryStore.read

    async def away(*_: Any, **__: Any) -> LogPage:
        raise StoreUnavailable

    monkeypatch.setattr(MemoryStore, "read", away)
    world.hub.announcements_lost()
    monkeypatch.setattr(Hub, "entry_added", lambda *_: None)
    await world.answer(client_msg_id, "meanwhile")
    await settle()
    assert not client.task.done()
    monkeypatch.undo()
    assert MemoryStore.read is read
    while client.texts != ["before", "meanwhile"]:
        await asyncio.sleep(0)
    await world.answer(client_msg_id, "after")
    while client.texts[-1] != "after":
        await asyncio.sleep(0)
    assert client.texts == ["before", "meanwhile", "after"]
    client.task.cancel()


async def test_a_log_that_moved_backwards_gets_a_new_epoch_and_nothing_of_it_is_missed() -> None:
    world = await make_world()
    client_msg_id = await world.ask()
    client = Reading(world, await world.relay.subscribe("s1"))
    await settle()
    for text in ("kept", "lost 1", "lost 2"):
        await world.answer(client_msg_id, text)
    await settle()
    head = await world.store.head("s1")
    assert head is not None
    # What a failover does: the new master never heard of the last two, and others write in their place.
    log = world.store._sessions["s1"].log
    del log.entries[2:]
    world.hub.announcements_lost()
    for n in range(5):
        await world.answer(client_msg_id, f"new {n}")
    while not client.texts or client.texts[-1] != "new 4":
        await asyncio.sleep(0)
    new_head = await world.store.head("s1")
    assert new_head is not None
    assert new_head.epoch != head.epoch
    assert client.texts[:3] == ["kept", "lost 1", "lost 2"]
    assert client.texts[-6:] == ["kept", *(f"new {n}" for n in range(5))]
    client.task.cancel()


async def test_a_log_that_is_the_same_after_all_keeps_its_epoch_and_doubles_nothing() -> None:
    world = await make_world(SlowStore)
    client_msg_id = await world.ask()
    client = Reading(world, await world.relay.subscribe("s1"))
    for n in range(50):
        await world.answer(client_msg_id, str(n))
        if n % 5 == 0:
            world.hub.announcements_lost()
        if n % 3 == 0:
            await asyncio.sleep(0)
    while len(client.texts) < 50:
        await asyncio.sleep(0)
    await settle()
    assert client.texts == [str(n) for n in range(50)]
    client.task.cancel()


# Idle sessions


async def test_reading_counts_as_use_and_listening_as_well() -> None:
    world = await make_world(session_ttl_seconds=100)
    for session_id in ("read", "fetched", "listened", "idle"):
        await world.answer(await world.ask(session_id=session_id), "x", session_id)
    subscriber = await world.relay.subscribe("listened")
    world.now_ms += 90_000
    await world.relay.history("read", limit=1, offset=0, since=None)
    await world.relay.pending("fetched")
    assert (await world.relay.session("read")).last_activity == world.now_ms
    world.now_ms += 20_000
    await world.relay.sweep_idle()
    assert [s.session_id for s in (await world.relay.sessions(limit=9, offset=0))[1]] == ["read", "fetched", "listened"]
    await world.relay.unsubscribe(subscriber)
    world.now_ms += 80_000
    await world.relay.sweep_idle()
    assert [s.session_id for s in (await world.relay.sessions(limit=9, offset=0))[1]] == ["listened"]
    world.now_ms += 20_000
    await world.relay.sweep_idle()
    assert (await world.relay.sessions(limit=9, offset=0))[0] == 0


async def test_with_a_ttl_of_zero_nothing_is_collected() -> None:
    world = await make_world(session_ttl_seconds=0)
    await world.answer(await world.ask(), "x")
    world.now_ms += 10**12
    await world.relay.sweep_idle()
    assert (await world.relay.sessions(limit=9, offset=0))[0] == 1
