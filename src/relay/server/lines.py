"""Writes log lines to standard error without ever holding up the server.

A terminal that is paused, or a log collector that is slow, would otherwise block the event loop inside a write; one
that has died would raise in the middle of a request. Lines go through a bounded queue to a thread of their own, and are
dropped, and counted, when nobody takes them.
"""

from __future__ import annotations

import queue
import sys
import threading

MAX_WAITING_LINES = 10_000
MAX_LINES_PER_WRITE = 1_000


class LineWriter:
    """A logger in structlog's sense: each of its methods takes a finished line."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[bytes | threading.Event] = queue.Queue(MAX_WAITING_LINES)
        self.dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def msg(self, line: bytes) -> None:
        """Have the line written soon."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    debug = info = warning = error = critical = msg

    def flush(self, seconds: float = 1.0) -> None:
        """Return when all is written, or after about `seconds` if nobody takes it."""
        reached = threading.Event()
        try:
            self._waiting.put(reached, timeout=seconds)
        except queue.Full:
            return
        reached.wait(seconds)

    def _write_all(self) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < MAX_LINES_PER_WRITE and not self._waiting.empty():
                taken.append(self._waiting.get())
            lines = [line for line in taken if isinstance(line, bytes)]
            try:
                sys.stderr.buffer.write(b"".join(line + b"\n" for line in lines))
                sys.stderr.buffer.flush()
            except (OSError, ValueError):
                self.dropped += len(lines)  # nobody is left to read them
            for reached in taken:
                if isinstance(reached, threading.Event):
                    reached.set()
