"""server/allowance.py: so many a second, and five seconds' worth at once."""

from __future__ import annotations

from relay.server.allowance import Allowance


def test_five_seconds_worth_at_once_and_not_one_more() -> None:
    allowance = Allowance(20, now=0.0)
    assert allowance.take(99, now=0.0)
    assert allowance.take(1, now=0.0)
    assert not allowance.take(1, now=0.0)


def test_it_fills_with_time_and_only_to_the_brim() -> None:
    allowance = Allowance(20, now=0.0)
    assert allowance.take(100, now=0.0)
    assert not allowance.take(11, now=0.5)
    assert allowance.take(10, now=0.5)
    assert not allowance.take(101, now=1_000.0)
    assert allowance.take(100, now=1_000.0)


def test_the_steady_rate_is_kept_for_ever() -> None:
    allowance = Allowance(20, now=0.0)
    assert all(allowance.take(1, now=n / 20) for n in range(10_000))
