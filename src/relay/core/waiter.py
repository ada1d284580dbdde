"""One poll that waits, and how waits end: woken, in time, or together with others.

A poll costs no task, timer or future of its own where it can be helped: polls of one moment share a timer, and polls
that are woken in the same turn of the loop are resumed in one go.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from relay.core.observer import WakeCause

SLOT_SECONDS = 0.02
"""Waits that end within so long of each other end together, at the last one's time."""

_TIMEOUT = WakeCause.TIMEOUT
_SAFETY = WakeCause.SAFETY
_FINAL = frozenset(cause for cause in WakeCause if cause.is_final)


class Waits:
    """What the waits of one process share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._slots: dict[int, dict[Waiter, WakeCause]] = {}
        self._woken: list[Callable[[], None]] = []
        self._due = False

    def end_in(self, seconds: float, waiter: Waiter, cause: WakeCause) -> dict[Waiter, WakeCause]:
        """Have the waiter woken after so long; it takes itself out of what is returned if it is woken before."""
        number = int((self.clock() + seconds) / SLOT_SECONDS) + 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            left = number * SLOT_SECONDS - self.clock()
            asyncio.get_running_loop().call_later(left, self._end, number)
        slot[waiter] = cause
        return slot

    def resume(self, go_on: Callable[[], None]) -> None:
        """Call it soon, but not now: whoever wakes a poll has work of its own to finish first."""
        self._woken.append(go_on)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.resume_all)

    def hold(self) -> None:
        """Wait for `resume_all` to be called, within this turn of the loop."""
        self._due = True

    def _end(self, number: int) -> None:
        for waiter, cause in self._slots.pop(number).items():
            waiter.wake(cause)

    def resume_all(self) -> None:
        """Let all who were woken go on."""
        self._due = False
        woken = self._woken
        if woken:
            self._woken = []
        for go_on in woken:
            try:
                go_on()
            except Exception as error:  # noqa: PERF203  # what is wrong with one must not keep the others waiting
                told = {"message": "a poll could not go on", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)


class Waiter(msgspec.Struct, eq=False):  # which is made faster than another object
    """A poll that waits. A wake-up carries no data: whoever is woken reads the store again."""

    _waits: Waits
    seated: bool = False
    """Whether it has taken one of its session's places."""
    _cause: WakeCause | None = None
    _future: asyncio.Future[None] | None = None
    _go_on: Callable[[], None] | None = None

    def wake(self, cause: WakeCause) -> None:
        """End the wait that is under way, or the next one. The first cause counts, unless a later one is final."""
        if self._cause is not None and cause not in _FINAL:
            return
        self._cause = cause
        if self._go_on is not None:
            self._waits.resume(self._go_on)
            self._go_on = None
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def hang_up(self) -> None:
        """Wake it because its caller has gone."""
        self.wake(WakeCause.GONE)

    def then(self, go_on: Callable[[], None]) -> None:
        """For whoever drives a coroutine by hand and was given this waiter: call `go_on` when it is woken."""
        self._go_on = go_on

    @types.coroutine
    def wait(self, seconds: float, safety_seconds: float, *, by_hand: bool = False) -> Generator[Any, None, WakeCause]:
        """Wait until woken and say why: TIMEOUT after `seconds`, or SAFETY after `safety_seconds` if that is sooner.

        `by_hand`: whoever drives the coroutine is given this waiter, see `then`. Otherwise it must be part of a task.
        """
        if self._cause is None:
            if seconds <= safety_seconds:
                slot = self._waits.end_in(seconds, self, _TIMEOUT)
            else:
                slot = self._waits.end_in(safety_seconds, self, _SAFETY)
            try:
                if by_hand:  # told, not asked for: to learn the current task takes Python a system call
                    yield self
                else:
                    self._future = asyncio.get_running_loop().create_future()
                    yield from self._future
            finally:
                self._future = None
                slot.pop(self, None)
        woken, self._cause = self._cause, None
        assert woken is not None
        return woken
