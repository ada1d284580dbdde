"""Callers of waiting polls who may hang up, under any ASGI server.

A server tells so only to whoever waits for its next message, and that takes a task for each poll. The polls of a busy
agent end before a task has paid off, so nobody listens to a poll before the first look that finds it still waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive

LOOK_SECONDS = 0.5
"""How often to look. A caller who has gone is noticed after twice as long at most; its poll takes no prompt with it."""


class HangUps:
    """The polls that nobody listens to yet."""

    def __init__(self) -> None:
        self._unheard: dict[_Caller, float] = {}

    def watch(self, receive: Receive, tell: Callable[[], None]) -> Callable[[], object]:
        """Call `tell` when the caller hangs up, unless the function that is returned was called before."""
        caller = _Caller(receive, tell, self._unheard)
        self._unheard[caller] = asyncio.get_running_loop().time()
        return caller.forget

    def look(self, now: float) -> None:
        """Listen to those who have waited for a while; `now` is the loop's time."""
        for caller, since in list(self._unheard.items()):
            if now - since < LOOK_SECONDS:
                break  # the others came later
            caller.listen()


class _Caller:
    __slots__ = ("_listening", "_receive", "_tell", "_unheard")

    def __init__(self, receive: Receive, tell: Callable[[], None], unheard: dict[_Caller, float]) -> None:
        self._receive = receive
        self._tell = tell
        self._unheard = unheard
        self._listening: asyncio.Task[None] | None = None

    def listen(self) -> None:
        del self._unheard[self]
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def forget(self) -> None:
        if self._listening is None:
            del self._unheard[self]
        else:
            self._listening.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._tell()
