"""What else instances agree on through Redis: buckets and tickets. Each key expires by itself, so nothing leaks.

    relay:bucket:<name>    string  how many tokens are used, and when that was
    relay:ticket:<ticket>  string  what it stands for

Time is that of Redis, as the clocks of instances differ. Nothing of it has to outlive a failover.
"""

from __future__ import annotations

import math

from relay.store.base import Grant
from relay.store.local import EPSILON
from relay.store.redis_events import number_text
from relay.store.redis_script import Script
from relay.store.redis_seats import RedisSeats

# It writes, but replicas need not confirm it: a token is not worth the wait, nor a 503.
_TAKE_TOKENS = Script("take_tokens", writes=False)


class RedisCommons(RedisSeats):
    """See `Store` for what it promises."""

    async def take_tokens(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        key = f"{self._prefix}:bucket:{bucket}".encode()
        reply = await self._link.run(_TAKE_TOKENS, (key,), want, number_text(per_second), burst, number_text(EPSILON))
        granted, wait_seconds = reply
        return Grant(granted, float(wait_seconds))

    async def keep_ticket(self, ticket: str, holder: bytes, seconds: float) -> None:
        key = self._ticket(ticket)
        await self._link.command(key, b"SET", key, holder, b"PX", max(1, math.ceil(seconds * 1000)))

    async def take_ticket(self, ticket: str) -> bytes | None:
        key = self._ticket(ticket)
        holder: bytes | None = await self._link.command(key, b"GETDEL", key)
        return holder

    def _ticket(self, ticket: str) -> bytes:
        return f"{self._prefix}:ticket:{ticket}".encode()
