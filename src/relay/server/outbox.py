"""What is written together, at the end of a turn of the event loop.

A write to a socket most often wakes somebody who waits for it, on another core or another machine. To do that between
any two requests costs more than to serve them: the processor is taken out of our code each time. So the requests that
have arrived in a turn are all served first, and then all that they have led to is written: first to those who have
waited, the polls and the WebSocket clients, and then to those who asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from relay.server.lookout import Lookout

SOCKETS_PER_TURN = 256
"""So many WebSocket clients are written to before everybody else has a turn: about two milliseconds."""

FEW = 2
"""So many answers at once may belong to a single conversation: a prompt's, and that of a poll that came with it."""


class Sender(Protocol):
    """A connection that has something to write."""

    def write_now(self) -> None:
        """Write it."""


class Outbox:
    """The connections that have something to write. `complain` is told of one that cannot be written to."""

    def __init__(self, complain: Callable[[Exception], None]) -> None:
        self._complain = complain
        self._waited: list[Sender] = []
        self._sockets: list[Sender] = []
        self._asked: list[Sender] = []
        self._due = False
        self._lookout = Lookout()

    def add_waited(self, sender: Sender) -> None:
        """Have it write at the end of this turn: the answer to a request that has waited."""
        self._waited.append(sender)
        if not self._due:
            self._write_soon()

    def add_socket(self, sender: Sender) -> None:
        """The same, or in one of the next turns if there are many: frames for a WebSocket client."""
        self._sockets.append(sender)
        if not self._due:
            self._write_soon()

    def add_asked(self, sender: Sender) -> None:
        """The same: the answer to what was asked in this turn."""
        self._asked.append(sender)
        if not self._due:
            self._write_soon()

    def hold(self) -> None:
        """Wait for `write_all` to be called, within this turn."""
        self._due = True

    def _write_soon(self) -> None:
        self._due = True
        asyncio.get_running_loop().call_soon(self.write_all)

    def write_all(self) -> None:
        """Have everybody write, but for many WebSocket clients: see above."""
        # With many there is always somebody; and what those who waited wait for may want the processor itself.
        if 0 < len(self._asked) <= FEW:
            answers = len(self._asked) + len(self._waited)
            if self._lookout.answered(answers):
                self._lookout.look(asyncio.get_running_loop().call_soon)
        due = self._waited + self._sockets[:SOCKETS_PER_TURN] + self._asked
        self._waited, self._sockets, self._asked = [], self._sockets[SOCKETS_PER_TURN:], []
        self._due = False
        if self._sockets:
            self._write_soon()
        for sender in due:
            try:
                sender.write_now()
            except Exception as error:  # noqa: PERF203  # what is wrong with one must not keep the others waiting
                self._complain(error)
