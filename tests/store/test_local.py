"""Places, buckets and tickets of one process: to the moment, and within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.store import local
from relay.store.base import Seat
from relay.store.local import LocalCommons
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def commons(clock: Clock) -> LocalCommons:
    return LocalCommons(clock)


async def take(
    commons: LocalCommons, bucket: str = "b", want: int = 1, *, per_second: float = 1, burst: int = 1
) -> int:
    return (await commons.take_tokens(bucket, want, per_second=per_second, burst=burst)).tokens


# Places


async def test_places_given_back_leave_nothing_behind(commons: LocalCommons) -> None:
    for n in range(100):
        for seat in Seat:
            await commons.take_seat(f"s{n}", seat, 5)
            await commons.leave_seat(f"s{n}", seat)
            await commons.leave_seat(f"s{n}", seat)
    assert commons._seats == {}


# Buckets


async def test_a_token_is_there_at_the_moment_that_was_told(commons: LocalCommons, clock: Clock) -> None:
    for per_second in (0.1, 1 / 3, 1, 3, 7.7, 300, 12_345.6):
        assert await take(commons, str(per_second), 100, per_second=per_second, burst=10) == 10
        for _ in range(1000):
            refused = await commons.take_tokens(str(per_second), 1, per_second=per_second, burst=10)
            assert refused.wait_seconds == pytest.approx(1 / per_second, rel=1e-3)
            clock.now += refused.wait_seconds * 0.99
            assert await take(commons, str(per_second), per_second=per_second, burst=10) == 0
            clock.now += refused.wait_seconds * 0.01 + 1e-9
            assert await take(commons, str(per_second), per_second=per_second, burst=10) == 1


@pytest.mark.parametrize("per_second", [0.1, 1 / 3, 7, 300.3])
async def test_nothing_is_lost_or_won_in_the_long_run(commons: LocalCommons, clock: Clock, per_second: float) -> None:
    start = clock.now
    granted = 0
    for n in range(100_000):
        granted += await take(commons, want=1 + n % 3, per_second=per_second, burst=20)
        clock.now += 0.77 / per_second
    assert granted == pytest.approx(20 + (clock.now - start) * per_second, abs=1.1)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 30)), max_size=50),
    st.floats(0.01, 1000),
    st.integers(1, 20),
)
async def test_never_more_than_the_burst_and_what_time_has_brought(
    steps: list[tuple[float, int]], per_second: float, burst: int
) -> None:
    clock = Clock()
    commons = LocalCommons(clock)
    start, total = clock.now, 0
    for seconds, want in steps:
        clock.now += seconds
        grant = await commons.take_tokens("b", want, per_second=per_second, burst=burst)
        assert grant.tokens <= want
        assert (grant.wait_seconds > 0) <= (grant.tokens == 0)
        assert grant.tokens or not want or grant.wait_seconds
        total += grant.tokens
        assert total <= burst + (clock.now - start) * per_second * (1 + 1e-9) + 1e-5


async def test_a_refusal_costs_nothing(commons: LocalCommons, clock: Clock) -> None:
    await take(commons)
    for _ in range(999):
        clock.now += 0.001
        assert await take(commons) == 0
    clock.now += 0.001001
    assert await take(commons) == 1


async def test_full_buckets_are_dropped_now_and_then(commons: LocalCommons, clock: Clock) -> None:
    for n in range(5_000):
        await take(commons, f"address {n}")
        clock.now += 0.1  # so ten or eleven are not full again
        assert len(commons._buckets) <= local.SWEEP_CALLS + 3 * 11
    clock.now += 10
    for _ in range(2 * local.SWEEP_CALLS):
        await take(commons)
    assert list(commons._buckets) == ["b"]


async def test_dropping_full_buckets_forgets_no_other(commons: LocalCommons, clock: Clock) -> None:
    await take(commons, "limited", per_second=1e-6)
    for n in range(5_000):
        await take(commons, f"address {n}")
        clock.now += 1
    assert await take(commons, "limited", per_second=1e-6) == 0


async def test_buckets_are_bounded_and_the_one_unused_for_longest_goes_first(
    commons: LocalCommons, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_BUCKETS", 1_000)
    await take(commons, "idle", per_second=1e-6)
    for n in range(5_000):
        await take(commons, f"address {n}", per_second=1e-6)
        assert await take(commons, "in use", per_second=1e-6) == int(n == 0)
        assert len(commons._buckets) <= 1_000
    assert len(commons._buckets) >= 900
    assert await take(commons, "idle", per_second=1e-6) == 1


async def test_full_buckets_go_before_any_other(
    commons: LocalCommons, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_BUCKETS", 1_000)
    monkeypatch.setattr(local, "SWEEP_CALLS", 10**9)
    commons = LocalCommons(clock)
    await take(commons, "oldest", per_second=1e-6)
    for n in range(2_000):
        await take(commons, f"address {n}")
        clock.now += 0.01
    assert await take(commons, "oldest", per_second=1e-6) == 0


async def test_the_bound_holds_for_as_many_addresses_as_there_are(commons: LocalCommons) -> None:
    for n in range(local.MAX_BUCKETS + 20_000):
        await take(commons, f"address {n}", per_second=1e-6)
        assert len(commons._buckets) <= local.MAX_BUCKETS


# Tickets


async def test_a_ticket_is_good_until_its_time_is_over(commons: LocalCommons, clock: Clock) -> None:
    await commons.keep_ticket("t1", b"who", 30)
    await commons.keep_ticket("t2", b"who", 30)
    clock.now += 29.999
    assert await commons.take_ticket("t1") == b"who"
    clock.now += 0.001
    assert await commons.take_ticket("t2") is None


async def test_tickets_are_bounded_and_the_oldest_go_first(commons: LocalCommons) -> None:
    for n in range(local.MAX_TICKETS + 1):
        await commons.keep_ticket(f"t{n}", b"who", 30)
    assert len(commons._tickets) == local.MAX_TICKETS - local.MAX_TICKETS // 10 + 1
    assert await commons.take_ticket("t0") is None
    assert await commons.take_ticket(f"t{local.MAX_TICKETS}") == b"who"
    assert await commons.take_ticket(f"t{local.MAX_TICKETS // 10}") == b"who"


async def test_tickets_whose_time_is_over_go_before_any_other(commons: LocalCommons, clock: Clock) -> None:
    await commons.keep_ticket("good for long", b"who", 300)
    for n in range(2 * local.MAX_TICKETS):
        await commons.keep_ticket(f"t{n}", b"who", 30)
        clock.now += 0.01
        assert len(commons._tickets) <= local.MAX_TICKETS
    assert await commons.take_ticket("good for long") == b"who"
