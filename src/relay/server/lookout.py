"""Keeps the process awake for a moment while one conversation goes on, where that pays.

To fall asleep and be woken again may cost more than to serve a request: the kernel takes some 20 µs, and our code then
runs at half its speed, until the processor knows it again. So after answers that follow closely upon others the event
loop goes on looking at its sockets for a moment: the conversation takes up to a third less time. Whoever comes once in
a while costs nothing.

On one machine it took no more of the processor than to fall asleep, on another a fifth more. So both are tried.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator
from typing import Any

LOOK_SECONDS = 60e-6
"""How long to look. The next request of a conversation comes sooner, if its network is a fast one."""

CLOSE_SECONDS = 300e-6
"""Answers that follow each other within so long belong to a conversation."""

TRIED_ANSWERS = 30
"""So many answers are given asleep, and then as many awake."""

TRIALS = 11
"""So often, and most of them decide: the processor may just then be busy with something else, or our code not be in its
caches yet."""

SETTLED_TURNS = 50_000
"""For so many turns what has been found is taken to be true."""

WORTH = 1.05
"""To be quicker is worth a twentieth more of the processor."""

CallSoon = Callable[..., Any]
Clock = Callable[[], float]


class Lookout:
    """Of one event loop."""

    def __init__(
        self,
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = time.process_time,
        cpus: int | None = os.cpu_count(),
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        # With a single processor we would only keep others from theirs.
        self._rest = 0 if (cpus or 1) > 1 else math.inf
        """For so many turns there is nothing to do: it does not pay."""
        self._answered_at = -math.inf
        self._until = -math.inf
        self._looking = False
        self._pays = self._find_out()
        next(self._pays)

    def answered(self, answers: int) -> bool:
        """So many answers are written in this turn; whether to begin to look."""
        if self._rest > 0:  # without a look at the clock: on such a machine all of this is only a cost
            self._rest -= 1
            return False
        now = self._clock()
        close = now - self._answered_at < CLOSE_SECONDS
        self._answered_at = now
        if not (self._pays.send(answers if close else 0) and close):
            return False
        self._until = now + LOOK_SECONDS
        return not self._looking

    def look(self, call_soon: CallSoon) -> None:
        """Look for a moment; `call_soon` is the loop's."""
        # With something to call the loop only asks what has come, and does not wait for it.
        self._looking = self._clock() < self._until
        if self._looking:
            call_soon(self.look, call_soon)

    def _find_out(self) -> Generator[bool, int, None]:
        """Whether to stay awake, turn by turn: both are tried, and then what was found holds for a while.

        Is told how many answers a turn has, or 0 if others do not belong to the same conversation.
        """
        while True:
            too_dear = 0
            for _ in range(TRIALS):
                asleep = yield from self._cost(awake=False)
                awake = yield from self._cost(awake=True)
                too_dear += awake > asleep * WORTH
            if too_dear > TRIALS // 2:
                self._rest = SETTLED_TURNS - 1
                yield False
            else:
                for _ in range(SETTLED_TURNS):
                    yield True

    def _cost(self, *, awake: bool) -> Generator[bool, int, float]:
        """What an answer costs like this."""
        spent, counted = 0.0, 0
        while counted < TRIED_ANSWERS:
            before = self._cpu_clock()
            answers = yield awake
            if answers:  # else there was a pause, and who knows what in it
                spent += self._cpu_clock() - before
                counted += answers
        return spent / counted
