"""core/relay.py: the rules, with a clock and ids of the test's own, and a store whose every call can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from relay.core import relay as relay_module
from relay.core.hub import Hub
from relay.core.observer import WakeCause
from relay.core.relay import ClientGone
from relay.core.waiter import Waiter
from relay.errors import ResponseConflict, SessionNotFound, TooManyPolls
from relay.store.base import Place, Seat
from relay.store.memory import MemoryStore
from tests.core.world import done, make_world, new_response, settle

# Prompts and responses


async def test_ids_and_times_are_given_where_they_are_missing() -> None:
    world = await make_world()
    assert await world.ask() == "id-1"
    posted = await done(world.relay.post_response(new_response("id-1", "Hi")))
    assert (posted.assistant_msg_id, posted.recipients) == ("id-2", 0)
    page = await world.relay.history("s1", limit=10, offset=0, since=None)
    assert [entry.ts for entry in page.entries] == [1_000_000, 1_000_000]


async def test_a_response_that_differs_under_the_same_id_is_a_conflict() -> None:
    world = await make_world()
    client_msg_id = await world.ask()
    await done(world.relay.post_response(new_response(client_msg_id, "one", "a1")))
    await done(world.relay.post_response(new_response(client_msg_id, "one", "a1")))
    with pytest.raises(ResponseConflict):
        await done(world.relay.post_response(new_response(client_msg_id, "two", "a1")))


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


async def test_the_time_that_a_place_takes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    now, waits = 0.0, []

    async def slow_seat(*_: object) -> bool:
        nonlocal now
        now += 20
        return True

    async def wait(_: object, seconds: float, __: float, *, by_hand: bool) -> WakeCause:
        waits.append(seconds)
        return WakeCause.TIMEOUT

    monkeypatch.setattr(world.relay, "_clock", lambda: now)
    monkeypatch.setattr(world.store, "take_seat", slow_seat)
    monkeypatch.setattr(Waiter, "wait", wait)
    assert await world.poll(30) == []
    assert waits == [10]


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


async def test_the_store_is_told_the_places_of_those_who_listen_and_of_nobody_else() -> None:
    world = await make_world()
    await world.answer(await world.ask(), "x")
    told: list[dict[Place, int]] = []

    async def hold_seats(held: Mapping[Place, int]) -> None:
        told.append(dict(held))

    world.store.hold_seats = hold_seats  # type: ignore[method-assign]
    await world.relay.sweep_idle()
    clients = [await world.relay.subscribe("s1"), await world.relay.subscribe("s1")]
    polls = [asyncio.create_task(world.poll()) for _ in range(3)]
    await settle()
    waiter = world.hub.add_waiter("s2")  # has not come to wait yet: it may not have to
    await world.relay.sweep_idle()
    world.hub.remove_waiter("s2", waiter)
    await world.ask()
    await asyncio.gather(*polls)
    await world.relay.unsubscribe(clients[0])
    await world.relay.sweep_idle()
    assert told == [{}, {("s1", Seat.CLIENT): 2, ("s1", Seat.POLL): 3}, {("s1", Seat.CLIENT): 1}]
