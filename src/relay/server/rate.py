"""How often: requests of one token or address, failed logins of one address.

The buckets are the store's, so that instances which share a store share the limit. A small share of a bucket is taken
at a time and spent here: most requests pass without asking the store. While it does not answer, each instance counts
for itself: what needs the store is refused anyway, and the rest (/livez, /metrics) must not be.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from itertools import islice

from relay.errors import RateLimited, StoreUnavailable, TooManyFailedLogins
from relay.store.base import Grant, Store
from relay.store.local import LocalCommons

SHARES_PER_SECOND = 20
"""How often the store is asked for a share, at the full rate."""

SHARE_SECONDS = 1.0
"""A share that is not spent by then is forgotten."""

PENALTY_SECONDS = 1.0
"""A refusal is answered so much later: whoever does not heed it cannot ask faster than its connections let it, and
leaves the processor to others."""

AWAY_SECONDS = 1.0
"""A store that did not answer is asked again after so long."""

MAX_KEYS = 10_000


class Buckets:
    """The store's buckets; while it is away, those of this process."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._own = LocalCommons(clock)
        self._clock = clock
        self._away_until = -math.inf

    async def take(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        """See `Store.take_tokens`."""
        if self._clock() >= self._away_until:
            try:
                return await self._store.take_tokens(bucket, want, per_second=per_second, burst=burst)
            except StoreUnavailable:
                self._away_until = self._clock() + AWAY_SECONDS
        return await self._own.take_tokens(bucket, want, per_second=per_second, burst=burst)


class _Share:
    __slots__ = ("closed_until", "good_until", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.good_until = 0.0
        self.closed_until = 0.0


class RateLimiter:
    """Requests per second of each token or address; twice as many at once."""

    def __init__(self, buckets: Buckets, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = buckets
        self._per_second = per_second
        self._burst = max(1, int(2 * per_second))
        self._want = max(1, int(per_second / SHARES_PER_SECOND))
        self._clock = clock
        self._shares: dict[str, _Share] = {}

    def spend(self, key: str) -> bool:
        """Whether one more request passes without asking the store."""
        if not self._per_second:
            return True
        share = self._shares.get(key)
        clock = self._clock  # what is called in the same step Python takes for a method, and looks for longer
        if share is None or share.tokens < 1 or share.good_until < clock():
            return False
        share.tokens -= 1
        return True

    async def pay(self, key: str) -> None:
        """Let one more request pass, or raise RateLimited, a little later."""
        if self.spend(key):
            return
        share = self._share(key)
        if share.closed_until <= self._clock():
            grant = await self._buckets.take(f"rate:{key}", self._want, per_second=self._per_second, burst=self._burst)
            now = self._clock()
            if grant.tokens:
                # Requests that came meanwhile may have brought a share too: both were paid for.
                share.tokens = grant.tokens - 1 + (share.tokens if share.good_until >= now else 0)
                share.good_until = now + SHARE_SECONDS
                return
            share.closed_until = now + grant.wait_seconds
        await asyncio.sleep(PENALTY_SECONDS)
        wait_seconds = share.closed_until - self._clock()
        raise RateLimited(f"at most {self._per_second:g} requests per second", wait_seconds)

    def _share(self, key: str) -> _Share:
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= MAX_KEYS:
                self._forget_old()
            share = self._shares[key] = _Share()
        return share

    def _forget_old(self) -> None:
        now = self._clock()
        self._shares = {
            key: share for key, share in self._shares.items() if max(share.good_until, share.closed_until) > now
        }
        # A tenth at once: to look through all of them for each of many new addresses would be the flood's best help.
        most = MAX_KEYS - MAX_KEYS // 10
        for key in list(islice(self._shares, max(0, len(self._shares) - most))):
            del self._shares[key]


class FailedLogins:
    """Refused tokens per minute of each address."""

    def __init__(self, buckets: Buckets, per_minute: int) -> None:
        self._buckets = buckets
        self._per_minute = per_minute

    async def count(self, address: str) -> None:
        """Note one more. Raises TooManyFailedLogins, a little later, once there are too many."""
        if not self._per_minute:
            return
        grant = await self._buckets.take(
            f"login:{address}", 1, per_second=self._per_minute / 60, burst=self._per_minute
        )
        if not grant.tokens:
            await asyncio.sleep(PENALTY_SECONDS)
            wait_seconds = grant.wait_seconds - PENALTY_SECONDS
            raise TooManyFailedLogins(f"at most {self._per_minute} refused tokens per minute", wait_seconds)
