"""Places, buckets and tickets that instances share through Redis, and what becomes of them when something fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from relay.errors import StoreUnavailable
from relay.store import redis_seats
from relay.store.base import SEAT_SECONDS, Seat
from relay.store.redis import RedisStore
from tests.factories import GENEROUS, Listening, a_prompt
from tests.store.redis_server import RedisServer, cluster, cluster_url

CLIENT, POLL = Seat.CLIENT, Seat.POLL
SEATS = "relay:{s1}:seats"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """What it acknowledged is on disk."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """An empty one, that may be harmed."""
    running.ask("FLUSHALL")
    return running


Connect = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
async def connect(server: RedisServer) -> AsyncIterator[Connect]:
    """Opens stores on the server, and closes them in the end."""
    async with AsyncExitStack() as stack:

        async def connect(*, url: str = server.url, **options: Any) -> RedisStore:
            store = RedisStore(url, GENEROUS, **options)
            await store.open(Listening())
            stack.push_async_callback(store.close)
            return store

        yield connect


async def until(holds: Callable[[], Awaitable[object]], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def free(store: RedisStore, most: int, seat: Seat = CLIENT) -> int:
    """How many places are not taken. They are afterwards."""
    count = 0
    while await store.take_seat("s1", seat, most):
        count += 1
    return count


def age(server: RedisServer) -> None:
    """Make everything that was said of the places in s1 as old as it may become."""
    for field, said in server.ask("HGETALL", SEATS).items():
        count, said_ms = said.split()
        server.ask("HSET", SEATS, field, f"{int(count)} {int(said_ms) - SEAT_SECONDS * 1000:.0f}")


# Places


async def test_instances_count_places_together(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert [await store.take_seat("s1", CLIENT, 3) for store in (one, other, one, other)] == [True, True, True, False]
    assert await free(other, 1, POLL) == 1
    await other.leave_seat("s1", CLIENT)
    await other.leave_seat("s1", CLIENT)  # which it did not take, so it is not given back for the one that did
    assert await free(one, 3) == 1


async def test_no_more_places_are_taken_at_once_than_there_are(connect: Connect) -> None:
    one, other = await connect(), await connect()
    for _ in range(5):
        takes = [store.take_seat("s1", CLIENT, 15) for _ in range(30) for store in (one, other)]
        assert sum(await asyncio.gather(*takes)) == 15
        held = {store: store._held.get(("s1", CLIENT), 0) for store in (one, other)}
        leaves = [store.leave_seat("s1", CLIENT) for store, count in held.items() for _ in range(count)]
        await asyncio.gather(*leaves)


async def test_places_of_an_instance_that_died_are_free_after_a_while(connect: Connect, server: RedisServer) -> None:
    dead, alive = await connect(seat_seconds=0.5), await connect(seat_seconds=0.5)
    assert await free(dead, 2) == 2
    assert await alive.take_seat("s1", CLIENT, 2) is False
    await dead.close()
    await until(lambda: alive.take_seat("s1", CLIENT, 2))
    assert await free(alive, 2) == 1


async def test_the_dead_leave_nothing_behind_among_the_living(connect: Connect, server: RedisServer) -> None:
    for _ in range(5):
        await (await connect()).take_seat("s1", CLIENT, 10)
        await (await connect()).take_seat("s1", POLL, 10)
    alive = await connect()
    assert await free(alive, 10) == 5
    age(server)
    assert await free(alive, 10) == 5  # its own five are still its own
    assert server.ask("HLEN", SEATS) == 1


async def test_places_that_are_named_again_stay_taken(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    assert await free(one, 2) == 2
    age(server)
    server.ask("PEXPIRE", SEATS, 1000)
    await one.hold_seats({("s1", CLIENT): 2})
    assert server.ask("PTTL", SEATS) > SEAT_SECONDS * 1000 - 10_000
    assert await free(other, 2) == 0


async def test_everything_goes_by_itself(connect: Connect, server: RedisServer) -> None:
    store = await connect()
    await store.take_seat("s1", CLIENT, 1)
    await store.leave_seat("s1", CLIENT)
    await store.hold_seats({("s2", CLIENT): 2})
    await store.take_seat("s3", POLL, 2)
    await store.take_tokens("b", 3, per_second=2, burst=5)
    await store.keep_ticket("t", b"who", 30)
    longest = {key: server.ask("PTTL", key) for key in server.ask("KEYS", "*")}
    seats = [f"relay:{{s{n}}}:seats".encode() for n in (1, 2, 3)]
    assert longest.keys() == {*seats, b"relay:bucket:b", b"relay:ticket:t"}
    assert all(SEAT_SECONDS * 1000 - 10_000 < longest[key] <= SEAT_SECONDS * 1000 for key in seats)
    assert 0 < longest[b"relay:bucket:b"] <= 1500
    assert 20_000 < longest[b"relay:ticket:t"] <= 30_000


async def test_what_redis_has_forgotten_is_told_again(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    assert await free(one, 3) == 3
    server.ask("FLUSHALL")
    assert await free(one, 4) == 1
    server.ask("FLUSHALL")
    await one.leave_seat("s1", CLIENT)
    assert await free(other, 4) == 1
    server.ask("FLUSHALL")
    await one.hold_seats({("s1", CLIENT): 3})
    assert await free(other, 5) == 1  # it holds one already
    assert await free(await connect(), 6) == 1


async def test_places_of_many_sessions_stay_counted_while_they_are_named(connect: Connect) -> None:
    """Calls under way at that moment are neither forgotten nor counted twice."""
    one, other = await connect(), await connect()
    held: dict[tuple[str, Seat], int] = {}

    async def come_and_go(session_id: str) -> None:
        for _ in range(20):
            assert await one.take_seat(session_id, CLIENT, 1)
            held[session_id, CLIENT] = 1
            await asyncio.sleep(0)
            del held[session_id, CLIENT]
            await one.leave_seat(session_id, CLIENT)
        assert await one.take_seat(session_id, CLIENT, 1)
        held[session_id, CLIENT] = 1

    moving = asyncio.gather(*(come_and_go(f"s{n}") for n in range(50)))
    while not moving.done():
        await one.hold_seats(held.copy())
        await asyncio.sleep(0)
    await moving
    for _ in range(3):
        await one.hold_seats(held.copy())
    assert not any([await other.take_seat(f"s{n}", CLIENT, 1) for n in range(50)])
    assert all([await other.take_seat(f"s{n}", CLIENT, 2) for n in range(50)])


async def test_a_count_that_a_failed_call_left_wrong_is_right_again(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    assert await free(one, 3) == 3
    server.kill()
    for call in (one.leave_seat("s1", CLIENT), one.leave_seat("s1", CLIENT), one.take_seat("s2", CLIENT, 1)):
        with pytest.raises(StoreUnavailable):
            await call
    with pytest.raises(StoreUnavailable):
        await one.hold_seats({("s1", CLIENT): 1})
    server.start()
    assert await free(other, 3) == 0
    await one.hold_seats({("s1", CLIENT): 1})
    assert await free(other, 3) == 2
    assert await other.take_seat("s2", CLIENT, 1)


@pytest.mark.parametrize("ticks", range(6))
async def test_a_place_whose_taker_has_gone_meanwhile_is_free_again(connect: Connect, ticks: int) -> None:
    one, other = await connect(), await connect()
    taking = asyncio.create_task(one.take_seat("s1", CLIENT, 1))
    for _ in range(ticks):
        await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    await one.check()  # by now Redis has done what it was asked to do
    await one.hold_seats({})
    assert await other.take_seat("s1", CLIENT, 1)


# Places to spare


def scripts_run(server: RedisServer) -> int:
    return int(server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given back by itself."""
    monkeypatch.setattr(redis_seats, "SPARE_SECONDS", 3600.0)


@pytest.mark.usefixtures("for_ever")
async def test_a_place_that_was_just_left_is_taken_again_without_asking(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    assert await one.take_seat("s1", POLL, 64)
    before = scripts_run(server)
    for _ in range(10):
        await one.leave_seat("s1", POLL)
        assert await one.take_seat("s1", POLL, 64)
    assert scripts_run(server) == before
    assert await one.take_seat("s1", POLL, 64)
    assert scripts_run(server) == before + 1
    assert all([await other.take_seat("s1", POLL, 64) for _ in range(62)])


async def test_whoever_finds_no_place_gets_one_that_another_had_to_spare(connect: Connect) -> None:
    one, other = await connect(), await connect()
    for _ in range(2):
        assert await one.take_seat("s1", CLIENT, 8)
    for _ in range(2):
        await one.leave_seat("s1", CLIENT)
    assert await free(other, 8) == 8


@pytest.mark.usefixtures("for_ever")
async def test_where_places_are_few_none_is_kept_to_spare(connect: Connect) -> None:
    one, other = await connect(), await connect()
    assert await one.take_seat("s1", CLIENT, 3)
    await one.leave_seat("s1", CLIENT)
    assert await free(other, 3) == 3


@pytest.mark.usefixtures("for_ever")
async def test_an_instance_that_stops_leaves_nothing_to_spare(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    for session_id in ("s1", "s2"):
        await one.take_seat(session_id, CLIENT, 4)
        await one.leave_seat(session_id, CLIENT)
    await one.close()
    assert await free(other, 4) == 4


@pytest.mark.usefixtures("for_ever")
async def test_what_could_not_be_given_back_is_with_the_next_round(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    await one.take_seat("s1", CLIENT, 4)
    await one.leave_seat("s1", CLIENT)
    server.kill()
    await one._give_back()
    server.start()
    await one.hold_seats({})
    assert await free(other, 4) == 4


@pytest.mark.usefixtures("for_ever")
async def test_places_to_spare_are_named_like_the_others(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect()
    for _ in range(2):
        await one.take_seat("s1", CLIENT, 8)
    await one.leave_seat("s1", CLIENT)
    server.ask("FLUSHALL")
    await one.hold_seats({("s1", CLIENT): 1})
    assert await one.take_seat("s1", CLIENT, 8)  # which Redis must have counted
    assert all([await other.take_seat("s1", CLIENT, 8) for _ in range(6)])
    assert server.ask("HVALS", SEATS)[0].startswith(b"2 ")


async def test_doubts_are_bounded(connect: Connect, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_seats, "MAX_DOUBTFUL", 10)
    store = await connect()
    server.kill()
    calls = [store.take_seat(f"s{n}", CLIENT, 1) for n in range(100)]
    assert {type(result) for result in await asyncio.gather(*calls, return_exceptions=True)} == {StoreUnavailable}
    assert len(store._doubtful) == 10
    server.start()
    await store.hold_seats({})
    assert store._doubtful == set()


# Buckets


async def test_instances_share_buckets(connect: Connect) -> None:
    one, other = await connect(), await connect()
    granted = [(await store.take_tokens("b", 3, per_second=0.001, burst=5)).tokens for store in (one, other, one)]
    assert granted == [3, 2, 0]


@pytest.mark.parametrize(("per_second", "burst"), [(200, 20), (1000 / 7, 3), (3.3, 1)])
async def test_all_together_get_no_more_than_the_burst_and_what_time_has_brought(
    connect: Connect, per_second: float, burst: int
) -> None:
    stores = [await connect(), await connect()]
    start = time.monotonic()
    total = 0

    async def take(store: RedisStore, want: int) -> None:
        nonlocal total
        while time.monotonic() < start + 0.5:
            grant = await store.take_tokens("b", want, per_second=per_second, burst=burst)
            total += grant.tokens

    await asyncio.gather(*(take(store, want) for store in stores for want in (1, 2, 5)))
    elapsed = time.monotonic() - start
    assert burst + 0.2 * per_second <= total + 1
    assert total <= burst + elapsed * per_second + 0.01


async def test_a_bucket_waits_for_a_clock_that_is_behind(connect: Connect, server: RedisServer) -> None:
    store = await connect()
    await store.take_tokens("b", 4, per_second=0.001, burst=5)
    used, at_us = server.ask("GET", "relay:bucket:b").split()
    server.ask("SET", "relay:bucket:b", f"{used.decode()} {int(at_us) + 10**9}")
    assert (await store.take_tokens("b", 9, per_second=0.001, burst=5)).tokens == 1


# Tickets


async def test_a_ticket_of_one_instance_is_good_at_another_and_once(connect: Connect) -> None:
    one, other = await connect(), await connect()
    for n in range(20):
        await one.keep_ticket(f"t{n}", b"who", 30)
        taken = await asyncio.gather(*(store.take_ticket(f"t{n}") for _ in range(10) for store in (one, other)))
        assert sorted(taken, key=bool) == [None] * 19 + [b"who"]


# All of it


async def test_without_redis_nothing_is_granted(connect: Connect, server: RedisServer) -> None:
    store = await connect()
    await store.take_seat("s2", CLIENT, 1)
    server.kill()
    calls = [
        store.take_seat("s1", CLIENT, 1),
        store.leave_seat("s2", CLIENT),
        store.hold_seats({("s1", CLIENT): 1}),
        store.take_tokens("b", 1, per_second=1, burst=1),
        store.keep_ticket("t", b"who", 1),
        store.take_ticket("t"),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 6
    server.start()


async def test_no_replica_has_to_confirm_what_need_not_survive(connect: Connect) -> None:
    store = await connect(wait_replicas=1)
    assert await store.take_seat("s1", CLIENT, 1)
    await store.hold_seats({("s1", CLIENT): 1})
    await store.leave_seat("s1", CLIENT)
    assert (await store.take_tokens("b", 1, per_second=1, burst=1)).tokens == 1
    await store.keep_ticket("t", b"who", 30)
    assert await store.take_ticket("t") == b"who"
    with pytest.raises(StoreUnavailable):
        await store.add_prompt(a_prompt())


async def test_databases_share_nothing(connect: Connect, server: RedisServer) -> None:
    one, other = await connect(), await connect(url=server.url[:-1] + "1")
    for store in (one, other):
        assert await free(store, 2) == 2
        assert (await store.take_tokens("b", 1, per_second=0.001, burst=1)).tokens == 1
    await one.keep_ticket("t", b"who", 30)
    assert await other.take_ticket("t") is None


async def test_instances_share_a_cluster(connect: Connect, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        one, other = await connect(url=cluster_url(nodes)), await connect(url=cluster_url(nodes[1:]))
        names = [f"name {n}" for n in range(30)]
        assert all(await asyncio.gather(*(one.take_seat(name, CLIENT, 1) for name in names)))
        assert not any(await asyncio.gather(*(other.take_seat(name, CLIENT, 1) for name in names)))
        await one.hold_seats({})
        assert all(await asyncio.gather(*(other.take_seat(name, CLIENT, 1) for name in names)))
        for store, tokens in ((one, 1), (other, 0)):
            takes = [store.take_tokens(name, 1, per_second=0.001, burst=1) for name in names]
            assert {grant.tokens for grant in await asyncio.gather(*takes)} == {tokens}
        await asyncio.gather(*(one.keep_ticket(name, name.encode(), 30) for name in names))
        taken = await asyncio.gather(*(other.take_ticket(name) for name in names))
        assert taken == [name.encode() for name in names]
