"""Places that instances count together through Redis, in keys that expire by themselves.

    relay:{sid}:seats      hash    <instance>:<kind> → how many places it has, and when it said so

Redis counts the places, as calls of one instance may overtake each other. The instance counts too: it can tell what
Redis has forgotten, and puts right what is in doubt after a call of which it does not know the end.

An agent that polls leaves a place and takes one again at once. So a place that was left stays with the instance for a
moment, to spare, if there are plenty; to take it again nobody is asked. Others count it as taken. Hence whoever finds
all places taken, and not by itself, asks once more when that moment is over.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping

from relay.errors import StoreUnavailable
from relay.store.base import Place, Seat
from relay.store.recent import Recent
from relay.store.redis_connection import Reply
from relay.store.redis_link import Link
from relay.store.redis_script import Script, packed
from relay.store.redis_sessions import Keys, in_turn

MAX_KNOWN = 2_000
"""Sessions whose keys are at hand. An id may be long, and is in each of them."""

MAX_DOUBTFUL = 100_000
"""Places remembered as wrongly counted, perhaps, while Redis is away. Of more than that, time will tell."""

SPARE_SECONDS = 0.1
"""At most so long a place that was left is kept to spare."""

PLENTY = 4
"""There are plenty of places while no more than one in so many is taken."""

# They write, but replicas need not confirm it: a place is not worth the wait, nor a 503.
_TAKE_SEAT = Script("take_seat", "seats", writes=False, keys=1, args=5)
_LEAVE_SEATS = Script("leave_seats", "seats", writes=False, keys=1, args=5)
_HOLD_SEAT = Script("hold_seat", "seats", writes=False, keys=1, args=5)


class RedisSeats:
    """See `Store` for what it promises. RedisStore brings the link."""

    _link: Link

    def __init__(self, prefix: str, seat_seconds: float) -> None:
        self._prefix = prefix
        instance, seat_ms = secrets.token_hex(8), math.ceil(seat_seconds * 1000)
        self._who = {seat: packed(instance, seat.value, seat_ms) for seat in Seat}
        self._known: Recent[str, Keys] = Recent(MAX_KNOWN)
        self._held: dict[Place, int] = {}
        self._spare: dict[Place, int] = {}
        self._plenty: set[Place] = set()
        self._giving_back: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None
        self._doubtful: set[Place] = set()

    async def take_seat(self, session_id: str, seat: Seat, most: int) -> bool:
        place = (session_id, seat)
        if place in self._spare:
            self._use_spare(place)
            self._held[place] = self._held.get(place, 0) + 1
            return True
        taken = await self._say(_TAKE_SEAT, place, self._own(place), most)
        if taken < 0:
            await asyncio.sleep(2 * SPARE_SECONDS)  # others may have had some to spare
            taken = await self._say(_TAKE_SEAT, place, self._own(place), most)
        if taken <= 0:
            return False
        self._held[place] = self._held.get(place, 0) + 1
        if taken * PLENTY <= most:
            self._plenty.add(place)
        else:
            self._plenty.discard(place)
        return True

    async def leave_seat(self, session_id: str, seat: Seat) -> None:
        place = (session_id, seat)
        own = self._own(place)
        held = self._held.pop(place, 0)
        if held > 1:
            self._held[place] = held - 1
        if held and place in self._plenty:
            self._spare[place] = self._spare.get(place, 0) + 1
            if self._giving_back is None:
                loop = asyncio.get_running_loop()
                self._giving_back = loop.call_later(SPARE_SECONDS, self._give_back_soon)
        elif held:
            await self._say(_LEAVE_SEATS, place, own, 1)

    async def hold_seats(self, held: Mapping[Place, int]) -> None:
        """See `Store`. What Redis counts is replaced only where that is in doubt: calls may be under way."""
        before, self._held = self._held, {place: count for place, count in held.items() if count > 0}
        self._plenty &= self._held.keys() | self._spare.keys()
        known = before.keys() | self._held.keys()
        doubtful = self._doubtful.union(place for place in known if before.get(place) != self._held.get(place))
        self._doubtful = set()
        try:
            await in_turn(self._hold(place, in_doubt=place in doubtful) for place in doubtful | self._held.keys())
        except BaseException:
            self._doubtful |= doubtful
            raise

    # How the above is done

    def _keys(self, session_id: str) -> Keys:
        keys = self._known.get(session_id)
        if keys is None:
            keys = Keys.of(self._prefix, session_id)
            self._known.set(session_id, keys)
        return keys

    def _own(self, place: Place) -> int:
        """How many places this instance has, as far as it knows."""
        return self._held.get(place, 0) + self._spare.get(place, 0)

    def _use_spare(self, place: Place) -> None:
        spare = self._spare.pop(place)
        if spare > 1:
            self._spare[place] = spare - 1

    def _give_back_soon(self) -> None:
        self._returning = asyncio.get_running_loop().create_task(self._give_back())

    async def _give_back(self) -> None:
        """Let others have what is to spare."""
        if self._giving_back is not None:
            self._giving_back.cancel()
            self._giving_back = None
        spare, self._spare = self._spare, {}
        self._plenty &= self._held.keys()
        own = {place: self._held.get(place, 0) + count for place, count in spare.items()}
        try:
            await in_turn(self._say(_LEAVE_SEATS, place, own[place], count) for place, count in spare.items())
        except StoreUnavailable:
            for place in spare:
                self._doubt(place)  # the next round of hold_seats tells it

    async def _hold(self, place: Place, *, in_doubt: bool) -> None:
        counted = await self._say(_HOLD_SEAT, place, self._own(place), int(in_doubt))
        if counted != self._own(place):
            # A call may be under way, and all is well; or this one has met such a call. The next round will tell.
            self._doubt(place)

    async def _say(self, script: Script, place: Place, own: int, what: int) -> Reply:
        session_id, seat = place
        keys = self._keys(session_id)
        call = b"%b%b%b%b" % (script.head, keys.packed_seats, self._who[seat], packed(own, what))
        try:
            return await self._link.send(keys.meta, call, script)
        except BaseException:  # even if only nobody waits any more: Redis may have done it
            self._doubt(place)
            raise

    def _doubt(self, place: Place) -> None:
        if len(self._doubtful) < MAX_DOUBTFUL:
            self._doubtful.add(place)
