"""What instances agree on, where there is only one: places, buckets and tickets in this process.

Under the memory store and the SQLite store, which belong to one process each. No method awaits anything, so each is one
atomic step. Strangers choose the names of buckets, by the addresses they come from, so there are bounds: what no longer
matters is dropped, and then what is oldest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from relay.store.base import Grant, Place, Seat

MAX_BUCKETS = 100_000
MAX_TICKETS = 10_000

SWEEP_CALLS = 1_000
"""After so many calls, and one for each bucket, the full buckets are dropped: no more than a step per call."""

EPSILON = 1e-6
"""Of a token: what floating point may have lost. It is not given away, the next token comes so much later."""

_Bucket = tuple[float, float, float]
"""How many tokens are used, when that was, and when none will be."""

_Ticket = tuple[bytes, float]
"""What it stands for, and until when."""

T = TypeVar("T")


class LocalCommons:
    """See `Store` for what it promises. `clock` counts seconds, from anywhere, and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seats: dict[Place, int] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._calls_to_sweep = SWEEP_CALLS
        self._tickets: dict[str, _Ticket] = {}

    async def take_seat(self, session_id: str, seat: Seat, most: int) -> bool:
        place = (session_id, seat)
        taken = self._seats.get(place, 0)
        if taken >= most:
            return False
        self._seats[place] = taken + 1
        return True

    async def leave_seat(self, session_id: str, seat: Seat) -> None:
        place = (session_id, seat)
        taken = self._seats.pop(place, 0)
        if taken > 1:
            self._seats[place] = taken - 1

    async def hold_seats(self, held: Mapping[Place, int]) -> None:
        self._seats = {place: count for place, count in held.items() if count > 0}

    async def take_tokens(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        now = self._clock()
        self._calls_to_sweep -= 1
        if self._calls_to_sweep < 0:
            self._sweep(now)
        # Out and in again: so the buckets are in the order of their last use, and the first is the one to drop.
        known = self._buckets.pop(bucket, None)
        used = 0.0 if known is None else known[0] - (now - known[1]) * per_second
        if used < 0.0:
            used = 0.0
        there = math.floor(burst - used + EPSILON)
        if there > 0:
            granted, wait_seconds = (want if want < there else there), 0.0
        else:
            granted, wait_seconds = 0, (1 - burst + used) / per_second
        if granted:
            used += granted
            known = (used, now, now + used / per_second)
        if known is not None:
            self._remember(bucket, known, now)
        return Grant(granted, wait_seconds)

    async def keep_ticket(self, ticket: str, holder: bytes, seconds: float) -> None:
        now = self._clock()
        if len(self._tickets) >= MAX_TICKETS:
            _make_room(self._tickets, lambda each: each[1] <= now)
        self._tickets[ticket] = (holder, now + seconds)

    async def take_ticket(self, ticket: str) -> bytes | None:
        holder, until = self._tickets.pop(ticket, (None, 0.0))
        return holder if until > self._clock() else None

    def _remember(self, bucket: str, state: _Bucket, now: float) -> None:
        if len(self._buckets) >= MAX_BUCKETS:
            _make_room(self._buckets, lambda each: each[2] <= now)
        self._buckets[bucket] = state

    def _sweep(self, now: float) -> None:
        self._buckets = {name: each for name, each in self._buckets.items() if each[2] > now}
        self._calls_to_sweep = SWEEP_CALLS + len(self._buckets)


def _make_room(entries: dict[str, T], is_over: Callable[[T], bool]) -> None:
    """Drop what is over; if that is too little, the oldest tenth too: at once, as looking through all takes a while."""
    most = len(entries) - len(entries) // 10
    for name in [name for name, each in entries.items() if is_over(each)]:
        del entries[name]
    for name in list(islice(entries, max(0, len(entries) - most))):
        del entries[name]
