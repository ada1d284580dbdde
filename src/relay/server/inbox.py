"""Requests that were read in a turn of the event loop, and are served when everything has been read.

To read is the kernel's work and to serve is ours. Each runs faster if the other does not interrupt it after every
request, and to serve many of one kind faster than to change between kinds: the processor then has what it needs at
hand. So a turn has four parts: everything is read; everything is served, kind by kind (`Route.rank`); the polls that
this has woken go on; and everything that it has led to is written (`outbox.py`).

What is served in another order than it came is on different connections, and nobody has an answer yet: no caller can
tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from relay.core.waiter import Waits
from relay.server.http import RANKS
from relay.server.outbox import Outbox

MAX_REQUESTS = 64
"""So many of a kind are served at once: neither may what they hold pile up, nor the first wait for long."""


class Reader(Protocol):
    """A connection from which a request was read."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def serve(self) -> None:
        """Serve it."""


class Inbox:
    """Of all connections. `complain` is told of an error in our code."""

    def __init__(self, waits: Waits, outbox: Outbox, complain: Callable[[Exception], None]) -> None:
        self._waits = waits
        self._outbox = outbox
        self._complain = complain
        self._readers: list[list[Reader]] = [[] for _ in range(RANKS)]
        self._due = False

    def add(self, reader: Reader, rank: int) -> None:
        """Have its request served when everything has been read.

        Whatever else happens to the connection before that comes after it: `serve_all` is to be called first.
        """
        if not self._due:
            self._due = True
            reader.loop.call_soon(self.serve_all)
        readers = self._readers[rank]
        readers.append(reader)
        if len(readers) >= MAX_REQUESTS:
            self.serve_all()

    def serve_all(self) -> None:
        """Serve all now, and write what it has led to."""
        self._due = False
        self._waits.hold()
        self._outbox.hold()
        try:
            for rank, readers in enumerate(self._readers):
                if readers:
                    self._readers[rank] = []
                    self._serve(readers)
        finally:  # whatever has gone wrong: nobody else would do it
            self._waits.resume_all()
            self._outbox.write_all()

    def _serve(self, readers: list[Reader]) -> None:
        for reader in readers:
            try:
                reader.serve()
            except Exception as error:  # noqa: PERF203  # what is wrong with one must not keep the others waiting
                self._complain(error)
                reader.transport.abort()
