"""Keeps the process awake for a moment while one conversation goes on.

To fall asleep and be woken again costs more than to serve a request: the kernel takes some 20 µs, and our code then
runs at half its speed, until the processor knows it again. So after answers that follow closely upon others the event
loop goes on looking at its sockets for a moment. Whoever comes once in a while costs nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 60e-6
"""How long to look. The next request of a conversation on a fast network comes within half of that."""

CLOSE_SECONDS = 300e-6
"""Answers that follow each other within so long belong to a conversation."""

CallSoon = Callable[..., Any]


class Lookout:
    """Of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, cpus: int | None = os.cpu_count()) -> None:
        self._clock = clock
        self._pays = (cpus or 1) > 1  # with a single processor we would only keep others from theirs
        self._answered_at = -math.inf
        self._until = -math.inf
        self._looking = False

    def answered(self, call_soon: CallSoon) -> None:
        """Answers are written; `call_soon` is the loop's."""
        now = self._clock()
        if self._pays and now - self._answered_at < CLOSE_SECONDS:
            self._until = now + LOOK_SECONDS
            if not self._looking:
                self._looking = True
                call_soon(self._look, call_soon)
        self._answered_at = now

    def _look(self, call_soon: CallSoon) -> None:
        # With something to call the loop only asks what has come, and does not wait for it.
        self._looking = self._clock() < self._until
        if self._looking:
            call_soon(self._look, call_soon)
