"""Announcements through Redis: one channel for all instances, one connection to hear it, and a proof that it works.

Redis forgets whom it could not reach, so there is a gap whenever the connection breaks. After each new
subscription the listener is therefore told that announcements were lost, and reads the logs itself. A probe goes
the same way as every announcement: a connection may look alive and yet deliver nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Awaitable, Callable

from redis.asyncio.connection import AbstractConnection

from relay.errors import StoreUnavailable
from relay.models import MessageType, Number
from relay.store.base import Entry, Listener
from relay.store.redis_link import Link, end

INLINE_BYTES = 16 * 1024
"""A larger message is announced without its data: every instance would receive it, few have a listener for it."""

RETRY_SECONDS = (0.05, 1.0)
"""The first pause before a new connection, and the longest."""

REMEMBERED = 10_000
"""Own announcements whose echo is still awaited. With one forgotten, a hint comes twice."""

KINDS = {b"p": MessageType.PROMPT, b"a": MessageType.ASSISTANT}
LETTERS = {kind: letter for letter, kind in KINDS.items()}

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
        self._told: dict[bytes, None] = {}
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
        if self._task is not None:
            await end(self._task)

    @property
    def hears(self) -> bool:
        """Whether announcements arrive, as far as the last probe can tell."""
        return self._proven.is_set()

    # Saying

    def new_tag(self) -> bytes:
        """What names one announcement of this instance, so that its echo is known."""
        self._count += 1
        return b"%s %d" % (self._instance, self._count)

    def entry_added(self, tag: bytes, session_id: str, epoch: str, entry: Entry) -> None:
        """Tell the listener, unless the echo was faster than Redis's reply."""
        if self._is_first(tag):
            self._listener.entry_added(session_id, epoch, entry)

    def session_deleted(self, tag: bytes, session_id: str) -> None:
        """Likewise."""
        if self._is_first(tag):
            self._listener.session_deleted(session_id)

    def _is_first(self, tag: bytes) -> bool:
        # Of reply and echo the first is told and the second dropped. That way nothing is missed if a reply is
        # lost, although the script has run.
        if tag in self._told:
            del self._told[tag]
            return False
        if tag.startswith(self._instance):
            if len(self._told) >= REMEMBERED:
                del self._told[next(iter(self._told))]
            self._told[tag] = None
        return True

    # Hearing

    async def _keep_hearing(self) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            connection = self._link.listening_connection()
            try:
                await self._subscribe(connection)
                pause = RETRY_SECONDS[0]
                await self._hear_and_probe(connection)
            except Exception as exc:  # whatever it was, a deaf instance is worse
                self.last_error = exc.__cause__ or exc
            finally:
                self._proven.clear()
                await connection.disconnect(nowait=True)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # only to spread the instances
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _subscribe(self, connection: AbstractConnection) -> None:
        await connection.connect()
        await connection.send_command("SUBSCRIBE", self.channel)
        await connection.read_response()
        if self._subscribed_before:
            self._listener.announcements_lost()
        self._subscribed_before = True

    async def _hear_and_probe(self, connection: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._hear(connection)), loop.create_task(self._keep_probing())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await end(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _hear(self, connection: AbstractConnection) -> None:
        while True:
            kind, _, message = await connection.read_response(timeout=math.inf)
            if kind == b"message":
                await self._understand(message)

    async def _keep_probing(self) -> None:
        while True:
            self._probe = asyncio.get_running_loop().create_future()
            self._probe_tag = self.new_tag()
            await self._link.command(self.channel, b"PUBLISH", self.channel, b"probe " + self._probe_tag)
            await asyncio.wait([self._probe], timeout=self._probe_seconds)
            if not self._probe.done():
                raise StoreUnavailable from TimeoutError("a probe has not come back")
            self._proven.set()
            await asyncio.sleep(self._probe_seconds)

    async def _understand(self, message: bytes) -> None:
        what, instance, count, *rest = message.split(b" ", 3)
        tag = b"%s %s" % (instance, count)
        if what == b"probe":
            if tag == self._probe_tag and self._probe is not None and not self._probe.done():
                self._probe.set_result(None)
        elif tag in self._told:
            del self._told[tag]
        elif what == b"deleted":
            self.session_deleted(tag, rest[0].decode())
        elif what == b"entry":
            await self._understand_entry(tag, rest[0])

    async def _understand_entry(self, tag: bytes, announced: bytes) -> None:
        epoch, seq, letter, ts, inline, length, text = announced.split(b" ", 6)
        session_id, data = text[: int(length)].decode(), text[int(length) :]
        if inline == b"1":
            entry = Entry(int(seq), KINDS[letter], number(ts), data)
            self.entry_added(tag, session_id, epoch.decode(), entry)
        elif found := await self._fetch(session_id, int(seq)):
            self.entry_added(tag, session_id, *found)


def entry_head(tag: bytes) -> bytes:
    """The beginning of an entry's announcement; a script puts epoch and seq behind it."""
    return b"entry " + tag


def entry_tail(session_id: bytes, kind: MessageType, ts: Number, *, inline: bool) -> bytes:
    """What follows them; the data comes last, if it rides along."""
    return b"%s %s %d %d %s" % (LETTERS[kind], number_text(ts), inline, len(session_id), session_id)


def deletion(tag: bytes, session_id: bytes) -> bytes:
    """The announcement that a session is gone."""
    return b"deleted %s %s" % (tag, session_id)


def number_text(value: Number) -> bytes:
    """A number so that `number` and Lua read the very same one."""
    return repr(value).encode()


def number(text: bytes) -> Number:
    """Back from `number_text`; an integer stays one."""
    return int(text) if text.isdigit() else float(text)
