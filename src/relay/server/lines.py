"""Writes log lines to standard error without ever holding up the server.

A terminal that is paused, or a log collector that is slow, would otherwise block the event loop inside a write; one
that has died would raise in the middle of a request. Lines go through a bounded queue to a thread of their own, and are
dropped, and counted, when nobody takes them.
"""

from __future__ import annotations

import sys
import threading
from collections import deque

MAX_WAITING_LINES = 10_000

GATHER_SECONDS = 0.05
"""The thread lets lines gather for so long: to wake it for each of them would cost more than to write them."""


class LineWriter:
    """A logger in structlog's sense: each of its methods takes a finished line."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._flushes: deque[threading.Event] = deque()
        self._awake = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self.dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def msg(self, line: bytes) -> None:
        """Have the line written soon."""
        if len(self._lines) >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    debug = info = warning = error = critical = msg

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
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            try:
                sys.stderr.buffer.write(b"\n".join([*lines, b""]))
                sys.stderr.buffer.flush()
            except (OSError, ValueError, AttributeError):
                self.dropped += len(lines)  # nobody is left to read them
            for done in flushes:
                done.set()
