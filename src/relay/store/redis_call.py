"""One command under way, and whoever waits for its reply.

It is a future, for tasks. A coroutine that is driven by hand goes on in the very moment in which the reply is read,
without another turn of the loop: see `then`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from relay.errors import StoreUnavailable
from relay.store.redis_connection import Reply
from relay.store.redis_script import Script, command


class Call(asyncio.Future[Reply]):
    """To be awaited by one. It raises StoreUnavailable if Redis has not done it, or nobody knows."""

    __slots__ = ("_go_on", "command", "script")

    asking = False
    """Whether the server must be told that it may be asked, though the key is still on its way there."""
    redirects = 0

    def __init__(self, packed: bytes, script: Script | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.command = packed
        self.script = script
        self._go_on: Callable[[], None] | None = None

    def then(self, go_on: Callable[[], None]) -> None:
        """For whoever drives a coroutine by hand and was given this call: call `go_on` when it is answered."""
        self._go_on = go_on

    def send_source(self) -> bool:
        """From now on send the script itself, not its hash; False if that is what was sent already."""
        whole = self.script.with_source(self.command) if self.script is not None else None
        if whole is not None:
            self.command = whole
        return whole is not None

    def heed(self, reply: Reply) -> None:
        """Do what has to be done when Redis has replied, whether or not anybody still waits. Nothing, most often."""

    def answer(self, reply: Reply) -> None:
        """Hand the reply to whoever waits, unless nobody does any more. Not to be called within a task."""
        if self.done():
            return
        self.set_result(reply)
        if self._go_on is not None:
            try:
                self._go_on()
            except Exception as error:  # what is wrong with one must not keep the others waiting
                told = {"message": "a call's reply could not be used", "exception": error}
                self.get_loop().call_exception_handler(told)

    def fail(self, error: BaseException) -> None:
        """Redis has not done it."""
        if self.done():
            return
        unavailable = StoreUnavailable()
        unavailable.__cause__ = error
        self.set_exception(unavailable)
        if self._go_on is not None:
            self.get_loop().call_soon(self._go_on)

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
