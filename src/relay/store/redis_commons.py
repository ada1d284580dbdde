"""What instances agree on through Redis: places, buckets and tickets. Each key expires by itself, so nothing leaks.

    relay:{sid}:seats      hash    <instance>:<kind> → how many places it holds, and when it said so
    relay:bucket:<name>    string  how many tokens are used, and when that was
    relay:ticket:<ticket>  string  what it stands for

Time is that of Redis, as the clocks of instances differ. Nothing of it has to outlive a failover.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping

from relay.store.base import Grant, Place, Seat
from relay.store.local import EPSILON
from relay.store.redis_connection import Reply
from relay.store.redis_events import number_text
from relay.store.redis_link import Link
from relay.store.redis_script import Argument, Script
from relay.store.redis_sessions import Keys, in_turn

MAX_KNOWN = 2_000
"""Sessions whose keys are at hand. An id may be long, and is in each of them."""

MAX_DOUBTFUL = 100_000
"""Places remembered as wrongly counted, perhaps, while Redis is away. Of more than that, time will tell."""

# They write, but replicas need not confirm it: a place or a token is not worth the wait, nor a 503.
_TAKE_SEAT = Script("take_seat", "seats", writes=False)
_LEAVE_SEAT = Script("leave_seat", "seats", writes=False)
_HOLD_SEAT = Script("hold_seat", "seats", writes=False)
_TAKE_TOKENS = Script("take_tokens", writes=False)


class RedisCommons:
    """See `Store` for what it promises. RedisStore brings the link.

    Redis counts the places, as calls of one instance may overtake each other. The instance counts too: it can tell
    what Redis has forgotten, and puts right what is in doubt after a call of which it does not know the end.
    """

    _link: Link

    def __init__(self, prefix: str, seat_seconds: float) -> None:
        self._prefix = prefix
        self._instance = secrets.token_hex(8)
        self._seat_ms = math.ceil(seat_seconds * 1000)
        self._known: dict[str, Keys] = {}
        self._held: dict[Place, int] = {}
        self._doubtful: set[Place] = set()

    async def take_seat(self, session_id: str, seat: Seat, most: int) -> bool:
        place = (session_id, seat)
        taken = await self._say(_TAKE_SEAT, place, self._held.get(place, 0), most)
        if taken:
            self._held[place] = self._held.get(place, 0) + 1
        return bool(taken)

    async def leave_seat(self, session_id: str, seat: Seat) -> None:
        place = (session_id, seat)
        held = self._held.pop(place, 0)
        if held > 1:
            self._held[place] = held - 1
        await self._say(_LEAVE_SEAT, place, held)

    async def hold_seats(self, held: Mapping[Place, int]) -> None:
        """See `Store`. What Redis counts is replaced only where that is in doubt: calls may be under way."""
        before, self._held = self._held, {place: count for place, count in held.items() if count > 0}
        known = before.keys() | self._held.keys()
        doubtful = self._doubtful.union(place for place in known if before.get(place) != self._held.get(place))
        self._doubtful = set()
        try:
            await in_turn(self._hold(place, in_doubt=place in doubtful) for place in doubtful | self._held.keys())
        except BaseException:
            self._doubtful |= doubtful
            raise

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

    # How the above is done

    def _keys(self, session_id: str) -> Keys:
        keys = self._known.get(session_id)
        if keys is None:
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            keys = self._known[session_id] = Keys(self._prefix, session_id)
        return keys

    def _ticket(self, ticket: str) -> bytes:
        return f"{self._prefix}:ticket:{ticket}".encode()

    async def _hold(self, place: Place, *, in_doubt: bool) -> None:
        counted = await self._say(_HOLD_SEAT, place, self._held.get(place, 0), int(in_doubt))
        if counted != self._held.get(place, 0):
            # A call may be under way, and all is well; or this one has met such a call. The next round will tell.
            self._doubt(place)

    async def _say(self, script: Script, place: Place, held: int, *more: Argument) -> Reply:
        session_id, seat = place
        key = self._keys(session_id).seats
        try:
            return await self._link.run(script, (key,), self._instance, seat.value, self._seat_ms, held, *more)
        except BaseException:  # even if only nobody waits any more: Redis may have done it
            self._doubt(place)
            raise

    def _doubt(self, place: Place) -> None:
        if len(self._doubtful) < MAX_DOUBTFUL:
            self._doubtful.add(place)
