"""What is written together, at the end of a turn of the event loop.

A write to a socket most often wakes somebody who waits for it, on another core or another machine. To do that between
any two requests costs more than to serve them: the processor is taken out of our code each time. So the requests that
have arrived in a turn are all served first, and then all that they have led to is written: first to those who have
waited, the polls and the WebSocket clients, and then to those who asked.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from relay.server.lookout import Lookout

WRITES_PER_TURN = 256
"""So many connections are written to before everybody else has a turn: about two milliseconds."""


class Sender(Protocol):
    """A connection that has something to write."""

    def write_now(self) -> None:
        """Write it."""


class Outbox:
    """The connections that have something to write."""

    def __init__(self) -> None:
        self._asked: list[Sender] = []
        self._waited: list[Sender] = []
        self._lookout = Lookout()

    def add(self, sender: Sender) -> None:
        """Have it write at the end of this turn: the answer to what was asked in it."""
        if not self._asked and not self._waited:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._asked.append(sender)

    def add_first(self, sender: Sender) -> None:
        """The same, before those: it has waited."""
        if not self._asked and not self._waited:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._waited.append(sender)

    def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        # With many there is always somebody; and what those who waited wait for may want the processor itself.
        if len(self._asked) == 1:
            self._lookout.answered(loop.call_soon)
        due = self._waited + self._asked
        self._waited, self._asked = due[WRITES_PER_TURN:], []
        if self._waited:
            loop.call_soon(self._write_all)
        for sender in due[:WRITES_PER_TURN]:
            try:
                sender.write_now()
            except Exception as error:  # noqa: PERF203  # what is wrong with one must not keep the others waiting
                loop.call_exception_handler({"message": "an answer could not be written", "exception": error})
