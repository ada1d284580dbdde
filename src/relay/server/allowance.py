"""How often somebody may do something: so many times a second, and some seconds' worth at once."""

from __future__ import annotations

BURST_SECONDS = 5.0
"""A phone that wakes up, or a proxy that was stuck, says several seconds' worth in one moment."""


class Allowance:
    """A bucket that fills by `per_second` and holds BURST_SECONDS of it. Times are the caller's, by any clock."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = per_second * BURST_SECONDS
        self._at = now

    def take(self, count: int, now: float) -> bool:
        """Whether `count` more are within the allowance; if not, nothing is taken."""
        gained = (now - self._at) * self._per_second
        self._left = min(self._left + gained, self._per_second * BURST_SECONDS)
        self._at = now
        if count > self._left:
            return False
        self._left -= count
        return True
