"""One command under way, and whoever waits for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from relay.errors import StoreUnavailable
from relay.store.later import Later
from relay.store.redis_connection import Reply
from relay.store.redis_script import Script, command


class Call(Later[Reply]):
    """It raises StoreUnavailable if Redis has not done it, or nobody knows."""

    asking = False
    """Whether the server must be told that it may be asked, though the key is still on its way there."""
    redirects = 0

    def __init__(self, packed: bytes, script: Script | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.command = packed
        self.script = script

    def send_source(self) -> bool:
        """From now on send the script itself, not its hash; False if that is what was sent already."""
        whole = self.script.with_source(self.command) if self.script is not None else None
        if whole is not None:
            self.command = whole
        return whole is not None

    def heed(self, reply: Reply) -> None:
        """Do what has to be done when Redis has replied, whether or not anybody still waits. Nothing, most often."""

    def fail(self, error: BaseException) -> None:
        """Redis has not done it."""
        unavailable = StoreUnavailable()
        unavailable.__cause__ = error
        super().fail(unavailable)

    def lose(self, error: BaseException) -> None:
        """It was sent, and there will be no reply: Redis may have done it, or may still do it."""
        self.fail(error)


def ignored(*parts: bytes | int) -> Call:
    """A command whose reply is for nobody."""
    call = Call(command(*parts), None, asyncio.get_running_loop())
    call.cancel()
    return call


def fail_all(calls: Iterable[Call], error: BaseException) -> None:
    """None of them was done."""
    for call in calls:
        call.fail(error)
