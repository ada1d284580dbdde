"""core/relay.py: connected clients get every answer once and in order, whatever happens to store and announcements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from relay.core import relay as relay_module
from relay.core.hub import Hub
from relay.core.relay import Relay
from relay.core.subscriber import Frame, Subscriber
from relay.errors import StoreUnavailable
from relay.store.base import LogPage
from relay.store.memory import MemoryStore
from tests.core.world import SlowStore, World, make_world, settle


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
