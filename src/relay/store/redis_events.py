"""Announcements through Redis: one channel for all instances, one connection to hear it, and a proof that it works.

Redis forgets whom it could not reach, so there is a gap whenever the connection breaks. After each new
subscription the listener is therefore told that announcements were lost, and reads the logs itself. A probe goes
the same way as every announcement: a connection may look alive and yet deliver nothing.

Of what this instance keeps, the listener is told as soon as Redis has replied. If that would be out of turn, because
another instance has kept something in between, it waits for its echo: the channel has everything in one order.

While no other instance hears, nothing need be announced: who keeps it has the reply. Redis can tell, as each subscribes
to a name of its own as well (see keep.lua). A reply that is lost takes with it the only word of what was kept, or is
kept only later. So one is followed by a new subscription, under a new name: to Redis the call then comes from somebody
else, and is announced; if it was done before, the listener finds it in the log.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

from relay.errors import StoreUnavailable
from relay.models import MessageType, Number
from relay.store.base import Entry, Listener, Position
from relay.store.recent import Recent
from relay.store.redis_connection import CONNECT_SECONDS, Connection, Reply
from relay.store.redis_lane import end
from relay.store.redis_link import Link
from relay.store.redis_saying import Keeping, Parting
from relay.store.redis_script import command, packed

INLINE_BYTES = 16 * 1024
"""A larger message is announced without its data: every instance would receive it, few have a listener for it."""

RETRY_SECONDS = (0.05, 1.0)
"""The first pause before a new connection, and the longest."""

REMEMBERED = 10_000
"""Own announcements whose echo is still awaited, and sessions whose last announcement is known. With one forgotten, a
hint comes twice, or out of turn."""

NOT_KEPT = 2
"""So many parts has the reply of a script that has kept nothing: why, and under which name to list the session."""

KINDS = {b"p": MessageType.PROMPT, b"a": MessageType.ASSISTANT}

Fetch = Callable[[str, int], Awaitable[tuple[str, Entry] | None]]


class Events:
    """What this instance announces, and hears from all. `fetch` reads an entry that was announced without data."""

    def __init__(self, link: Link, channel: str, listener: Listener, fetch: Fetch, *, probe_seconds: float) -> None:
        self.loop = link.loop
        self.channel = channel.encode()
        self._link = link
        self._listener = listener
        self._fetch = fetch
        self._probe_seconds = probe_seconds
        self._rename(b"")
        self._count = 0
        self._said: dict[int, Keeping | Parting] = {}
        """Own announcements whose echo has not come, by tag."""
        self._reached: Recent[str, Position] = Recent(REMEMBERED)
        """The place of the last entry of each session of which the listener was told, as far as others may
        have kept one before it."""
        self._connection: Connection | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._subscribed_before = False
        self._proven = asyncio.Event()
        self._probe: asyncio.Future[None] | None = None
        self._probe_tag = 0
        self.last_error: BaseException | None = None

    async def start(self, seconds: float) -> None:
        """Begin to hear; returns when a first probe has come back. Raises StoreUnavailable after `seconds`."""
        self._task = asyncio.get_running_loop().create_task(self._keep_hearing())
        try:
            await asyncio.wait_for(self._proven.wait(), seconds)
        except asyncio.TimeoutError:
            raise StoreUnavailable from self.last_error

    async def stop(self) -> None:
        """Hear nothing more."""
        await end(*(task for task in (self._task, self._fetching) if task is not None))

    @property
    def hears(self) -> bool:
        """Whether announcements arrive, as far as the last probe can tell."""
        return self._proven.is_set()

    # Saying

    def say(self, what: Keeping | Parting) -> int:
        """Something is about to be announced, perhaps; returns the tag for it."""
        self._count = tag = self._count + 1
        said = self._said
        said[tag] = what
        if len(said) > REMEMBERED:
            for oldest in list(islice(said, REMEMBERED // 2)):
                del said[oldest]
        return tag

    def replied(self, call: Keeping, reply: Reply) -> None:
        """See keep.lua. Tell the listener now or, if that is out of turn, at its echo.

        It is told already if the echo was faster than the reply.
        """
        if len(reply) == NOT_KEPT:
            self.unsaid(call)
            return
        if call.told:
            return
        _, _, place, seq, announced = reply
        entry, epoch = call.entry, place.decode()
        if not announced:
            call.told = True
            self._said.pop(call.tag, None)
            self._listener.entry_added(entry.session_id, epoch, Entry(seq, entry.kind, entry.ts, entry.data))
            return
        reached = self._reached.get(entry.session_id)
        if reached is None or seq <= reached.seq + 1 or epoch != reached.epoch:
            call.told = True
            self._tell(entry.session_id, epoch, Entry(seq, entry.kind, entry.ts, entry.data))

    def reply_lost(self, error: BaseException) -> None:
        """An entry may have been kept, or may yet be, without being announced: hear anew, and by another name."""
        if self._connection is not None and self._link.is_one_server:
            self._connection.fail(ConnectionError(f"the reply to a write was lost: {error}"))

    def parted(self, parting: Parting) -> None:
        """Redis has replied that the session is gone. Tell the listener, unless the echo was faster."""
        if not parting.told:
            parting.told = True
            self._tell_deletion(parting.session_id)

    def unsaid(self, what: Keeping | Parting) -> None:
        """Nothing was announced, as far as is known. Should there be an echo nevertheless, it is told."""
        if not what.told:
            self._said.pop(what.tag, None)

    def _tell(self, session_id: str, epoch: str, entry: Entry) -> None:
        self._reached.set(session_id, Position(epoch, entry.seq))
        self._listener.entry_added(session_id, epoch, entry)

    def _tell_deletion(self, session_id: str) -> None:
        self._reached.forget(session_id)
        self._listener.session_deleted(session_id)

    def _rename(self, name: bytes) -> None:
        self.name = name
        self.packed_name = packed(name)

    # Hearing

    async def _keep_hearing(self) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            connection: Connection | None = None
            try:
                connection = await self._link.connection()
                await self._hear(connection)
            except Exception as exc:  # whatever it was, a deaf instance is worse
                self.last_error = exc.__cause__ or exc
            finally:
                if self._proven.is_set():
                    pause = RETRY_SECONDS[0]
                self._proven.clear()
                self._connection = None
                self._rename(b"")
                if connection is not None:
                    connection.close()
                    await connection.wait_closed()
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # only to spread the instances
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _hear(self, connection: Connection) -> None:
        """Hear until that fails, and raise why."""
        loop = asyncio.get_running_loop()
        subscribed: asyncio.Future[None] = loop.create_future()
        over: asyncio.Future[Exception] = loop.create_future()

        def take(reply: Reply) -> None:
            if isinstance(reply, Exception):
                raise reply
            kind, _, message = reply
            if kind == b"message":
                self._understand(message, connection)
            elif not subscribed.done():
                subscribed.set_result(None)
                self._begin_anew()

        def lost(reason: Exception) -> None:
            if not over.done():
                over.set_result(reason)

        connection.hand_over_to(take, lost)
        self._connection = connection
        self._rename(b"%b:%b" % (self.channel, secrets.token_hex(8).encode()))
        connection.write(command(b"SUBSCRIBE", self.channel, self.name))
        probing = loop.create_task(self._keep_probing(subscribed))
        either: list[asyncio.Future[Any]] = [over, probing]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(probing)
        if not probing.cancelled():
            probing.result()
        raise over.result()

    def _begin_anew(self) -> None:
        # Before the first announcement is understood: what comes now was kept after what the listener will read.
        self._said.clear()
        self._reached.clear()
        if self._subscribed_before:
            self._listener.announcements_lost()
        self._subscribed_before = True

    async def _keep_probing(self, subscribed: asyncio.Future[None]) -> None:
        await asyncio.wait([subscribed], timeout=CONNECT_SECONDS)
        while True:
            self._probe = asyncio.get_running_loop().create_future()
            self._count = self._probe_tag = self._count + 1
            probe = b"probe %b %d" % (self.name, self._probe_tag)
            await self._link.command(self.channel, b"PUBLISH", self.channel, probe)
            await asyncio.wait([self._probe], timeout=self._probe_seconds)
            if not self._probe.done():
                raise StoreUnavailable from TimeoutError("a probe has not come back")
            self._proven.set()
            await asyncio.sleep(self._probe_seconds)

    def _understand(self, message: bytes, connection: Connection) -> None:
        what, name, count, *rest = message.split(b" ", 9)
        tag = int(count) if name == self.name else 0
        if what == b"entry":
            self._understand_entry(tag, rest, connection)
        elif what == b"deleted":
            said = self._said.pop(tag, None)
            if said is None or not said.told:
                self._tell_deletion(b" ".join(rest).decode())
            if said is not None:
                said.told = True
        elif tag == self._probe_tag and self._probe is not None and not self._probe.done():
            self._probe.set_result(None)

    def _understand_entry(self, tag: int, rest: list[bytes], connection: Connection) -> None:
        epoch, seq, letter, ts, inline, length, text = rest
        said = self._said.pop(tag, None)
        if isinstance(said, Keeping):
            if not said.told:
                said.told = True
                entry = said.entry
                self._tell(entry.session_id, epoch.decode(), Entry(int(seq), entry.kind, entry.ts, entry.data))
            return
        session_id = text[: int(length)].decode()
        if inline == b"1":
            self._tell(session_id, epoch.decode(), Entry(int(seq), KINDS[letter], number(ts), text[int(length) :]))
        else:
            connection.pause()  # what comes after it has to wait for its turn
            fetching = self._fetch_and_tell(session_id, int(seq), connection)
            self._fetching = asyncio.get_running_loop().create_task(fetching)

    async def _fetch_and_tell(self, session_id: str, seq: int, connection: Connection) -> None:
        try:
            found = await self._fetch(session_id, seq)
        except StoreUnavailable as exc:
            connection.fail(exc)
            return
        if found:
            self._tell(session_id, *found)
        connection.resume()


def number_text(value: Number) -> bytes:
    """A number so that `number` and Lua read the very same one."""
    return repr(value).encode()


def number(text: bytes) -> Number:
    """Back from `number_text`; an integer stays one."""
    return int(text) if text.isdigit() else float(text)
