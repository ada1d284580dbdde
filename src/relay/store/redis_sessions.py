"""The list of all sessions in Redis, in the order of their creation.

It has a slot of its own, so it cannot be written in the same step as a session. A session that is not on it, because
an instance died in between, is put there by the next write; a name on it without a session is dropped when met.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from relay.store.redis_link import Link, Script

AT_A_TIME = 500
"""Sessions dealt with together when there are many; other calls get their turn in between."""

_REGISTER = Script("register")
_REGISTERED = Script("registered")


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
