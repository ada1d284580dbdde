"""Writes the log to standard error without ever holding up the server.

A terminal that is paused, or a log collector that is slow, would otherwise block the event loop inside a write; one
that has died would raise in the middle of a request. Events go through a bounded queue to a thread of their own, which
makes lines of them, many at a time; they are dropped, and counted, when nobody takes them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

MAX_WAITING_LINES = 10_000

Event = dict[str, Any] | msgspec.Struct
"""The fields of a line."""

LINES_AT_A_TIME = 256
"""While so many lines are made, nothing else in the process runs: about a tenth of a millisecond."""

GATHER_SECONDS = 0.05
"""The thread lets lines gather for so long: to wake it for each of them would cost more than to write them."""


class LineWriter:
    """Takes events; `render` makes lines of them, each with its end."""

    def __init__(self, render: Callable[[Sequence[Event]], bytes]) -> None:
        self._render = render
        self._events: deque[Event] = deque()
        self._flushes: deque[threading.Event] = deque()
        self._awake = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self.dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def put(self, event: Event) -> None:
        """Have the event written soon."""
        if len(self._events) >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        self._events.append(event)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def flush(self, seconds: float = 1.0) -> None:
        """Return when all is written, or after about `seconds` if nobody takes it."""
        done = threading.Event()
        self._flushes.append(done)
        self._hurry.set()
        self._wake.set()
        done.wait(seconds)

    def _write_all(self) -> None:
        while True:
            self._wake.wait()
            self._hurry.wait(GATHER_SECONDS)
            # In this order: whatever comes from now on is either taken below or wakes us again.
            self._wake.clear()
            self._hurry.clear()
            self._awake = False
            flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
            left = len(self._events)
            events: Iterator[Event] = iter(self._events.popleft, None)
            while left:
                batch = list(islice(events, min(left, LINES_AT_A_TIME)))
                left -= len(batch)
                self._write(batch)
            for done in flushes:
                done.set()

    def _write(self, batch: Sequence[Event]) -> None:
        lines = memoryview(self._lines(batch))
        try:
            # Past Python's own buffer: what nobody takes would still be in it, or its lock held, when the process ends.
            while lines:
                lines = lines[os.write(sys.stderr.fileno(), lines) :]
        except (OSError, ValueError, AttributeError):
            self.dropped += len(batch)  # nobody is left to read them

    def _lines(self, batch: Sequence[Event]) -> bytes:
        try:
            return self._render(batch)
        except Exception:  # whatever is wrong with one event must cost neither the others nor this thread
            if len(batch) > 1:
                return b"".join(self._lines([event]) for event in batch)
            self.dropped += 1
            return b""
