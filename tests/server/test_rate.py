"""server/rate.py with a clock of its own: never more than the burst and what time has brought, and bounded."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import RateLimited, StoreUnavailable, TooManyFailedLogins
from relay.server import rate
from relay.server.rate import AWAY_SECONDS, MAX_KEYS, PENALTY_SECONDS, Buckets, FailedLogins, RateLimiter
from relay.store.base import Grant
from relay.store.memory import MemoryStore
from tests.clock import Clock
from tests.factories import GENEROUS


@pytest.fixture(autouse=True)
def no_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal comes at once: time passes only when told to."""
    monkeypatch.setattr(rate, "PENALTY_SECONDS", 0)


def a_limiter(clock: Clock, per_second: float, store: MemoryStore | None = None) -> RateLimiter:
    return RateLimiter(Buckets(store or MemoryStore(GENEROUS, clock=clock), clock), per_second, clock)


async def passes(limiter: RateLimiter, key: str = "k") -> bool:
    try:
        await limiter.pay(key)
    except RateLimited:
        return False
    return True


async def count(limiter: RateLimiter, tries: int, key: str = "k") -> int:
    """How many of so many requests pass."""
    return sum([await passes(limiter, key) for _ in range(tries)])


@pytest.mark.parametrize(("per_second", "burst"), [(100, 200), (5, 10), (1, 2), (0.5, 1), (0.01, 1), (33.3, 66)])
async def test_twice_as_many_at_once_and_not_one_more(per_second: float, burst: int) -> None:
    clock = Clock()
    assert await count(a_limiter(clock, per_second), 3 * burst + 5) == burst


async def test_it_refills_by_the_rate() -> None:
    clock = Clock()
    limiter = a_limiter(clock, 100)
    assert await count(limiter, 300) == 200
    for _ in range(10):
        clock.now += 0.1
        assert await count(limiter, 100) in (9, 10, 11)


@given(st.floats(0.1, 300), st.lists(st.tuples(st.floats(0, 3), st.integers(0, 40)), max_size=40), st.integers(1, 3))
def test_shares_let_no_more_through_than_burst_and_time(
    per_second: float, steps: list[tuple[float, int]], instances: int
) -> None:
    async def run() -> None:
        clock = Clock()
        store = MemoryStore(GENEROUS, clock=clock)
        limiters = [a_limiter(clock, per_second, store) for _ in range(instances)]
        begun, passed = clock.now, 0
        for seconds, tries in steps:
            clock.now += seconds
            for n in range(tries):
                passed += await passes(limiters[n % instances])
        assert passed <= max(1, int(2 * per_second)) + per_second * (clock.now - begun) + 1e-3

    asyncio.run(run())


async def test_requests_at_the_same_time_pay_for_themselves() -> None:
    clock = Clock()
    limiter = a_limiter(clock, 100)
    assert sum(await asyncio.gather(*(passes(limiter) for _ in range(500)))) == 200


async def test_callers_have_buckets_of_their_own() -> None:
    limiter = a_limiter(Clock(), 1)
    assert await count(limiter, 5, "a") == 2
    assert await count(limiter, 5, "b") == 2


async def test_without_a_limit_everything_passes_and_nothing_is_remembered() -> None:
    limiter = a_limiter(Clock(), 0)
    assert await count(limiter, 1000) == 1000
    assert limiter._shares == {}


@pytest.mark.parametrize(("per_second", "said"), [(0.1, 10), (0.3, 4), (1, 1), (100, 1)])
async def test_a_refusal_says_after_how_long_there_is_room(per_second: float, said: int) -> None:
    clock = Clock()
    limiter = a_limiter(clock, per_second)
    while await passes(limiter):
        pass
    with pytest.raises(RateLimited) as refused:
        await limiter.pay("k")
    assert refused.value.retry_after_seconds == said
    assert refused.value.details == f"at most {per_second:g} requests per second"
    clock.now += said
    assert await passes(limiter)


async def test_failed_logins_say_so_too() -> None:
    clock = Clock()
    logins = FailedLogins(Buckets(MemoryStore(GENEROUS, clock=clock), clock), 3)
    for _ in range(3):
        await logins.count("1.2.3.4")
    with pytest.raises(TooManyFailedLogins) as refused:
        await logins.count("1.2.3.4")
    assert refused.value.retry_after_seconds == 20
    assert refused.value.details == "at most 3 refused tokens per minute"
    await logins.count("1.2.3.5")
    clock.now += 20
    await logins.count("1.2.3.4")


async def test_a_refusal_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "PENALTY_SECONDS", PENALTY_SECONDS / 20)
    limiter = a_limiter(Clock(), 0.01)
    await limiter.pay("k")
    began = time.monotonic()
    assert not await passes(limiter)
    assert time.monotonic() - began >= PENALTY_SECONDS / 20


async def test_two_hundred_thousand_addresses_cost_little_memory_and_little_time() -> None:
    limiter = a_limiter(Clock(), 100)
    began = time.process_time()
    for n in range(200_000):
        await limiter.pay(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert len(limiter._shares) <= MAX_KEYS
    assert time.process_time() - began < 10, "looking through all of them for each takes minutes"


class AwayStore(MemoryStore):
    """Does not answer for a while."""

    away = True
    asked = 0

    async def take_tokens(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        self.asked += 1
        if self.away:
            raise StoreUnavailable
        return await super().take_tokens(bucket, want, per_second=per_second, burst=burst)


async def test_while_the_store_is_away_each_instance_counts_for_itself() -> None:
    clock = Clock()
    store = AwayStore(GENEROUS, clock=clock)
    limiter = a_limiter(clock, 5, store)
    assert await count(limiter, 30) == 10
    assert store.asked == 1, "a store that does not answer holds up only one request a second"
    store.away = False
    clock.now += AWAY_SECONDS
    assert await count(limiter, 30) == 10
    assert store.asked > 1
