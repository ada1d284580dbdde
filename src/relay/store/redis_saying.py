"""What an instance says through Redis: that it keeps an entry, that a session is gone. See redis_events.py."""

from __future__ import annotations

import asyncio
from typing import Protocol

from relay.store.base import NewEntry
from relay.store.redis_call import Call
from relay.store.redis_connection import Reply
from relay.store.redis_script import Script


class Announcer(Protocol):
    """Who knows what was said, and tells the listener."""

    loop: asyncio.AbstractEventLoop
    name: bytes

    def say(self, what: Keeping | Parting) -> int:
        """Something is about to be announced, perhaps; returns the tag for it."""

    def replied(self, call: Keeping, reply: Reply) -> None:
        """Redis has replied."""

    def reply_lost(self, error: BaseException) -> None:
        """Redis will not reply, whatever it has done."""

    def unsaid(self, what: Keeping | Parting) -> None:
        """Nothing was announced, as far as is known."""


class Keeping(Call):
    """The call that keeps an entry. Its reply says what the listener is to be told, whoever still waits for it.

    Whoever makes it gives it its command. `tag` names the announcement in it, so that its echo is known.
    """

    __slots__ = ("_events", "entry", "tag", "told")

    def __init__(self, events: Announcer, entry: NewEntry, script: Script) -> None:
        super().__init__(b"", script, events.loop)
        self._events = events
        self.entry = entry
        self.told = False
        self.tag = events.say(self)

    def heed(self, reply: Reply) -> None:
        self._events.replied(self, reply)

    def fail(self, error: BaseException) -> None:
        self._events.unsaid(self)
        super().fail(error)

    def lose(self, error: BaseException) -> None:
        self._events.reply_lost(error)
        super().lose(error)


class Parting:
    """The announcement that a session is gone."""

    def __init__(self, events: Announcer, session_id: str) -> None:
        self.session_id = session_id
        self.told = False
        self.tag = events.say(self)
        self.text = b"deleted %b %d %b" % (events.name, self.tag, session_id.encode())
