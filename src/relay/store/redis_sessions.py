"""Sessions in Redis: the keys of one, and the list of all in the order of their creation.

The list has a slot of its own, so it cannot be written in the same step as a session. A session that is not on it,
because an instance died in between, is put there by the next write; a name on it without a session is dropped when met.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from relay.store.redis_link import Link
from relay.store.redis_script import Script

AT_A_TIME = 500
"""Sessions dealt with together when there are many; other calls get their turn in between."""

_REGISTER = Script("register")
_REGISTERED = Script("registered")

# Written out, as a session that was not met lately is met by many a prompt if there are many sessions.
_PACKED = b"$%d\r\n%bmeta\r\n$%d\r\n%blog\r\n$%d\r\n%bids\r\n$%d\r\n%bpending\r\n$%d\r\n%btimes\r\n$%d\r\n%b\r\n"
_PACKED_PENDING = b"$%d\r\n%bmeta\r\n$%d\r\n%bpending\r\n"
_PACKED_SEATS = b"$%d\r\n%bseats\r\n"

T = TypeVar("T")


class Keys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one session, and how they stand in the calls that are made most often.

    The collector need not know of them: it would be called by each new one, and look at everything there is.
    """

    base: bytes
    meta: bytes
    packed: bytes
    """Of the scripts that keep something: all keys, and the id as their first argument."""
    packed_pending: bytes
    packed_seats: bytes
    """Not among all of them: clients and polls may wait for a session that is not there, or no longer."""

    @classmethod
    def of(cls, prefix: str, session_id: str) -> Keys:
        """Those of a session."""
        # Redis hashes what stands between the first { and the first } behind it: an id must not end it early.
        tag = session_id.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        base = f"{prefix}:{{{tag}}}:".encode()
        session = session_id.encode()
        named = b"%d %b" % (len(session), session)
        n = len(base)
        return cls(
            base,
            base + b"meta",
            _PACKED % (n + 4, base, n + 3, base, n + 3, base, n + 7, base, n + 5, base, len(named), named),
            _PACKED_PENDING % (n + 4, base, n + 7, base),
            _PACKED_SEATS % (n + 5, base),
        )

    @property
    def log(self) -> bytes:
        return self.base + b"log"

    @property
    def pending(self) -> bytes:
        return self.base + b"pending"

    @property
    def times(self) -> bytes:
        return self.base + b"times"

    @property
    def all(self) -> tuple[bytes, ...]:
        """In the order of keep.lua."""
        return (self.meta, self.log, self.base + b"ids", self.pending, self.times)


class Name(msgspec.Struct, frozen=True, gc=False):
    """A session on the list. A later session with the same id has another life, and so another name."""

    life: bytes
    session_id: str

    @property
    def member(self) -> bytes:
        """As it stands on the list."""
        return b"%s:%s" % (self.life, self.session_id.encode())

    @classmethod
    def read(cls, member: bytes) -> Name:
        """Back from `member`."""
        life, _, session_id = member.partition(b":")
        return cls(life, session_id.decode())


class SessionList:
    """The names of all sessions. Every method may raise StoreUnavailable."""

    def __init__(self, link: Link, key: bytes) -> None:
        self._link = link
        self._key = key

    async def count(self) -> int:
        """How many names there are."""
        count: int = await self._link.command(self._key, b"ZCARD", self._key)
        return count

    async def names(self, first: int, last: int) -> list[Name]:
        """The names from one place to another, both included; -1 is the last place of all."""
        return [Name.read(member) for member in await self._link.command(self._key, b"ZRANGE", self._key, first, last)]

    async def add(self, name: Name, meta: bytes) -> None:
        """Put a session at the end, if it is not there, and note that in its `meta`."""
        await self._link.run(_REGISTER, (self._key,), name.member)
        if not await self._link.run(_REGISTERED, (meta,), name.life):
            await self.remove([name])  # it was deleted meanwhile, by somebody who did not find it here

    async def remove(self, names: Sequence[Name]) -> None:
        """Drop names whose sessions are gone."""
        for start in range(0, len(names), AT_A_TIME):
            members = [name.member for name in names[start : start + AT_A_TIME]]
            await self._link.command(self._key, b"ZREM", self._key, *members)


async def in_turn(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of many calls, of which only some are under way at any time."""
    results: list[T] = []
    waiting = iter(calls)
    while some := list(islice(waiting, AT_A_TIME)):
        results += await asyncio.gather(*some)
    return results
