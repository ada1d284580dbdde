"""Announcements through Redis: one channel for all instances, one connection to hear it, and a proof that it works.

Redis forgets whom it could not reach, so there is a gap whenever the connection breaks. After each new
subscription the listener is therefore told that announcements were lost, and reads the logs itself. A probe goes
the same way as every announcement: a connection may look alive and yet deliver nothing.

Of what this instance keeps, the listener is told as soon as Redis has replied. If that would be out of turn, because
another instance has kept something in between, it waits for its echo: the channel has everything in one order.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from relay.errors import StoreUnavailable
from relay.models import MessageType, Number
from relay.store.base import Entry, Listener, NewEntry
from relay.store.redis_connection import CONNECT_SECONDS, Connection, Reply
from relay.store.redis_lane import end
from relay.store.redis_link import Link
from relay.store.redis_script import command

INLINE_BYTES = 16 * 1024
"""A larger message is announced without its data: every instance would receive it, few have a listener for it."""

RETRY_SECONDS = (0.05, 1.0)
"""The first pause before a new connection, and the longest."""

REMEMBERED = 10_000
"""Own announcements whose echo is still awaited, and sessions whose last announcement is known. With one forgotten, a
hint comes twice, or out of turn."""

KINDS = {b"p": MessageType.PROMPT, b"a": MessageType.ASSISTANT}

Fetch = Callable[[str, int], Awaitable[tuple[str, Entry] | None]]


class Events:
    """What this instance announces, and hears from all. `fetch` reads an entry that was announced without data."""

    def __init__(self, link: Link, channel: str, listener: Listener, fetch: Fetch, *, probe_seconds: float) -> None:
        self.channel = channel.encode()
        self._link = link
        self._listener = listener
        self._fetch = fetch
        self._probe_seconds = probe_seconds
        self._instance = secrets.token_hex(8).encode()
        self._count = 0
        self._said: dict[bytes, NewEntry | str | None] = {}
        """Own announcements whose echo has not come: what the listener is to be told; None if that is done."""
        self._reached: dict[str, tuple[str, int]] = {}
        """The epoch and seq of the last entry of each session of which the listener was told."""
        self._fetching: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._subscribed_before = False
        self._proven = asyncio.Event()
        self._probe: asyncio.Future[None] | None = None
        self._probe_tag = b""
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

    def say(self, what: NewEntry | str) -> bytes:
        """What names the announcement of an entry, or of the end of a session, so that its echo is known.

        To be followed by `kept`, `deleted` or, if neither has happened or nobody knows, `unsaid`.
        """
        tag = self._new_tag()
        if len(self._said) >= REMEMBERED:
            del self._said[next(iter(self._said))]
        self._said[tag] = what
        return tag

    def kept(self, tag: bytes, epoch: str, seq: int) -> None:
        """Redis has replied that it has kept the entry. Tell the listener now or, if that is out of turn, at its echo.

        It is told already if the echo was faster than the reply.
        """
        entry = self._said.get(tag)
        if not isinstance(entry, NewEntry):
            return
        reached = self._reached.get(entry.session_id)
        if reached is None or seq <= reached[1] + 1 or epoch != reached[0]:
            self._said[tag] = None
            self._tell(entry.session_id, epoch, Entry(seq, entry.kind, entry.ts, entry.data))

    def deleted(self, tag: bytes) -> None:
        """Redis has replied that the session is gone. Likewise, but that is never out of turn."""
        session_id = self._said.get(tag)
        if isinstance(session_id, str):
            self._said[tag] = None
            self._tell_deletion(session_id)

    def unsaid(self, tag: bytes) -> None:
        """Nothing was announced, as far as is known. Should there be an echo nevertheless, it is told."""
        if self._said.get(tag) is not None:
            del self._said[tag]

    def _new_tag(self) -> bytes:
        self._count += 1
        return b"%b %d" % (self._instance, self._count)

    def _tell(self, session_id: str, epoch: str, entry: Entry) -> None:
        if session_id not in self._reached and len(self._reached) >= REMEMBERED:
            del self._reached[next(iter(self._reached))]
        self._reached[session_id] = (epoch, entry.seq)
        self._listener.entry_added(session_id, epoch, entry)

    def _tell_deletion(self, session_id: str) -> None:
        self._reached.pop(session_id, None)
        self._listener.session_deleted(session_id)

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
        connection.write(command(b"SUBSCRIBE", self.channel))
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
            self._probe_tag = self._new_tag()
            await self._link.command(self.channel, b"PUBLISH", self.channel, b"probe " + self._probe_tag)
            await asyncio.wait([self._probe], timeout=self._probe_seconds)
            if not self._probe.done():
                raise StoreUnavailable from TimeoutError("a probe has not come back")
            self._proven.set()
            await asyncio.sleep(self._probe_seconds)

    def _understand(self, message: bytes, connection: Connection) -> None:
        what, instance, count, *rest = message.split(b" ", 9)
        tag = b"%b %b" % (instance, count)
        if what == b"entry":
            self._understand_entry(tag, rest, connection)
        elif what == b"deleted":
            if self._said.pop(tag, what) is not None:
                self._tell_deletion(b" ".join(rest).decode())
        elif tag == self._probe_tag and self._probe is not None and not self._probe.done():
            self._probe.set_result(None)

    def _understand_entry(self, tag: bytes, rest: list[bytes], connection: Connection) -> None:
        epoch, seq, letter, ts, inline, length, text = rest
        if tag in self._said:
            said = self._said.pop(tag)
            if isinstance(said, NewEntry):
                self._tell(said.session_id, epoch.decode(), Entry(int(seq), said.kind, said.ts, said.data))
            return
        session_id = text[: int(length)].decode()
        if inline == b"1":
            entry = Entry(int(seq), KINDS[letter], number(ts), text[int(length) :])
            self._tell(session_id, epoch.decode(), entry)
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


def deletion(tag: bytes, session_id: str) -> bytes:
    """The announcement that a session is gone."""
    return b"deleted %b %b" % (tag, session_id.encode())


def number_text(value: Number) -> bytes:
    """A number so that `number` and Lua read the very same one."""
    return repr(value).encode()


def number(text: bytes) -> Number:
    """Back from `number_text`; an integer stays one."""
    return int(text) if text.isdigit() else float(text)
