"""Answers that are written together, at the end of a turn of the event loop.

A write to a socket most often wakes somebody who waits for it, on another core or another machine. To do that between
any two requests costs more than to serve them: the processor is taken out of our code each time. So the requests that
have arrived in a turn are all served first, and then all their answers are written: first to those who have waited
longer, the polls that one of these requests has woken.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from relay.server.lookout import Lookout


class Sender(Protocol):
    """A connection that has something to write."""

    loop: asyncio.AbstractEventLoop

    def write_now(self) -> None:
        """Write it."""


class Outbox:
    """The connections of this process that have something to write."""

    def __init__(self) -> None:
        self._senders: list[Sender] = []
        self._late: list[Sender] = []
        self._lookout = Lookout()

    def add(self, sender: Sender) -> None:
        """Have it write at the end of this turn."""
        if not self._senders and not self._late:
            sender.loop.call_soon(self.write_all)
        self._senders.append(sender)

    def add_late(self, sender: Sender) -> None:
        """The same, before the others: it has waited."""
        if not self._senders and not self._late:
            sender.loop.call_soon(self.write_all)
        self._late.append(sender)

    def write_all(self) -> None:
        """Write now whatever is due in this turn."""
        # With many there is always somebody; and what late ones have waited for may want the processor itself.
        if len(self._senders) == 1:
            self._lookout.answered(self._senders[0].loop.call_soon)
        senders, self._senders, self._late = self._late + self._senders, [], []
        for sender in senders:
            try:
                sender.write_now()
            except Exception as error:  # noqa: PERF203  # what is wrong with one must not keep the others waiting
                told = {"message": "an answer could not be written", "exception": error}
                sender.loop.call_exception_handler(told)
