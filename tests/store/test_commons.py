"""What store/base.py promises of what instances agree on, sentence by sentence."""

from __future__ import annotations

import asyncio
import time

import pytest

from relay.errors import SessionNotFound
from relay.store.base import Grant, Seat, Store
from tests.factories import a_prompt

CLIENT, POLL = Seat.CLIENT, Seat.POLL
HOUR = 1 / 3600
"""A rate so low that nothing is refilled during a test."""


async def free(store: Store, most: int, seat: Seat = CLIENT, session_id: str = "s1") -> int:
    """How many places are not taken. They are afterwards."""
    count = 0
    while await store.take_seat(session_id, seat, most):
        count += 1
    return count


# Places


async def test_a_session_has_only_so_many_places(store: Store) -> None:
    assert [await store.take_seat("s1", CLIENT, 2) for _ in range(4)] == [True, True, False, False]


async def test_a_place_given_back_can_be_taken_again(store: Store) -> None:
    assert await free(store, 3) == 3
    await store.leave_seat("s1", CLIENT)
    await store.leave_seat("s1", CLIENT)
    assert await free(store, 3) == 2


async def test_a_place_that_was_not_taken_cannot_be_given_back(store: Store) -> None:
    for _ in range(3):
        await store.leave_seat("s1", CLIENT)
    assert await free(store, 2) == 2
    for _ in range(5):
        await store.leave_seat("s1", CLIENT)
    assert await free(store, 2) == 2


async def test_kinds_of_places_are_counted_apart(store: Store) -> None:
    assert await free(store, 2) == 2
    assert await free(store, 3, POLL) == 3
    await store.leave_seat("s1", POLL)
    assert await free(store, 2) == 0


@pytest.mark.parametrize("other", ["s2", "s", "s1:", "S1", "{s1}", "%7Bs1%7D", "ключ"])
async def test_sessions_have_places_of_their_own(store: Store, other: str) -> None:
    assert await free(store, 2) == 2
    assert await free(store, 2, session_id=other) == 2
    await store.leave_seat(other, CLIENT)
    assert await free(store, 2) == 0


async def test_nobody_loses_a_place_if_there_are_fewer_than_before(store: Store) -> None:
    assert await free(store, 3) == 3
    assert await free(store, 1) == 0
    assert await free(store, 4) == 1


async def test_a_place_creates_no_session(store: Store) -> None:
    await store.take_seat("s1", CLIENT, 1)
    await store.hold_seats({("s1", CLIENT): 1, ("s2", POLL): 1})
    assert await store.head("s1") is None
    assert (await store.sessions(limit=10, offset=0)).total == 0
    with pytest.raises(SessionNotFound):
        await store.delete_session("s1")


async def test_a_place_outlives_its_session(store: Store) -> None:
    await store.add_prompt(a_prompt())
    assert await free(store, 2) == 2
    await store.delete_session("s1")
    assert await free(store, 2) == 0
    await store.leave_seat("s1", CLIENT)
    assert await free(store, 2) == 1


async def test_what_an_instance_says_it_holds_is_what_counts(store: Store) -> None:
    assert await free(store, 3) == 3
    await store.hold_seats({("s1", CLIENT): 1})
    assert await free(store, 3) == 2
    await store.hold_seats({("s1", CLIENT): 3, ("s2", POLL): 2})
    assert await free(store, 4) == 1
    assert await free(store, 4, POLL, "s2") == 2


async def test_to_hold_what_is_counted_changes_nothing(store: Store) -> None:
    assert await free(store, 2) == 2
    for _ in range(3):
        await store.hold_seats({("s1", CLIENT): 2})
    assert await free(store, 3) == 1


async def test_places_that_an_instance_does_not_name_are_not_held(store: Store) -> None:
    assert await free(store, 2) == 2
    assert await free(store, 2, POLL) == 2
    await store.hold_seats({("s1", POLL): 2, ("s1", CLIENT): 0})
    assert await free(store, 2) == 2
    await store.hold_seats({})
    assert await free(store, 2, POLL) == 2


async def test_many_places_can_be_held(store: Store) -> None:
    held = {(f"s{n}", seat): 1 for n in range(600) for seat in Seat}
    await store.hold_seats(held)
    assert not any([await store.take_seat(session_id, seat, 1) for session_id, seat in list(held)[-10:]])
    await store.hold_seats({})
    assert all([await store.take_seat(session_id, seat, 1) for session_id, seat in list(held)[-10:]])


# Buckets


async def take(store: Store, want: int, *, per_second: float = HOUR, burst: int = 5, bucket: str = "b") -> Grant:
    return await store.take_tokens(bucket, want, per_second=per_second, burst=burst)


async def test_a_bucket_that_nobody_has_used_is_full(store: Store) -> None:
    assert await take(store, 5) == Grant(5, 0)


async def test_no_more_is_granted_than_wanted_or_there(store: Store) -> None:
    assert [(await take(store, want)).tokens for want in (1, 2, 10, 1)] == [1, 2, 2, 0]


async def test_an_empty_bucket_tells_how_long_to_wait(store: Store) -> None:
    await take(store, 5)
    grant = await take(store, 1)
    assert grant.tokens == 0
    assert 3590 < grant.wait_seconds <= 3600


async def test_to_want_nothing_takes_nothing_and_tells_whether_there_is_one(store: Store) -> None:
    assert await take(store, 0) == Grant(0, 0)
    await take(store, 4)
    assert await take(store, 0) == Grant(0, 0)
    await take(store, 1)
    assert (await take(store, 0)).wait_seconds > 0


async def test_buckets_are_apart(store: Store) -> None:
    await take(store, 5)
    for bucket in ("c", "B", "{b}", "", "ключ 1.2.3.4"):
        assert await take(store, 5, bucket=bucket) == Grant(5, 0)


@pytest.mark.parametrize("per_second", [50, 1000 / 7])
async def test_a_bucket_refills_as_it_said(store: Store, per_second: float) -> None:
    start = time.monotonic()
    granted = 0
    while granted < 10:
        grant = await take(store, 5, per_second=per_second, burst=3)
        granted += grant.tokens
        assert grant.tokens or 0 < grant.wait_seconds <= 1 / per_second
        await asyncio.sleep(grant.wait_seconds)
    assert (granted - 3.01) / per_second < time.monotonic() - start < 3


async def test_a_bucket_never_holds_more_than_its_burst(store: Store) -> None:
    for _ in range(10):
        assert (await take(store, 100, per_second=1e9, burst=3)).tokens == 3


# Tickets


@pytest.mark.parametrize("holder", [b"who", b"", b"\x00\xff\r\n", "ключ".encode()])
async def test_a_ticket_is_good_once(store: Store, holder: bytes) -> None:
    await store.keep_ticket("t1", holder, 30)
    await store.keep_ticket("t2", b"another", 30)
    assert [await store.take_ticket("t1") for _ in range(3)] == [holder, None, None]
    assert await store.take_ticket("t2") == b"another"


async def test_a_ticket_that_was_never_kept_stands_for_nothing(store: Store) -> None:
    assert await store.take_ticket("t1") is None


async def test_only_one_of_many_gets_what_a_ticket_stands_for(store: Store) -> None:
    await store.keep_ticket("t1", b"who", 30)
    taken = await asyncio.gather(*(store.take_ticket("t1") for _ in range(50)))
    assert sorted(taken, key=bool) == [None] * 49 + [b"who"]


async def test_a_ticket_is_good_for_so_long_and_no_longer(store: Store) -> None:
    start = time.monotonic()
    await asyncio.gather(*(store.keep_ticket(f"t{n}", b"who", 0.1) for n in range(100)))
    taken = 0
    while await store.take_ticket(f"t{taken}"):
        taken += 1
        await asyncio.sleep(0.005)
    assert time.monotonic() - start > 0.099
    assert taken < 100
