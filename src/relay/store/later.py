"""A result that comes later, and whoever waits for it.

It is a future, for tasks. A coroutine that is driven by hand goes on in the very moment in which the result is there,
without another turn of the loop: see `then`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Later(asyncio.Future[T]):
    """To be awaited by one."""

    _go_on: Callable[[], None] | None = None

    def then(self, go_on: Callable[[], None]) -> None:
        """For whoever drives a coroutine by hand and was given this: call `go_on` when the result is there."""
        self._go_on = go_on

    def answer(self, result: T) -> None:
        """Hand the result to whoever waits, unless nobody does any more. Not to be called within a task."""
        if self.done():
            return
        self.set_result(result)
        if self._go_on is not None:
            self._resume(self._go_on)

    def fail(self, error: BaseException) -> None:
        """Have the error raised where the result is waited for. May be called anywhere."""
        if self.done():
            return
        self.set_exception(error)
        if self._go_on is not None:
            self.get_loop().call_soon(self._go_on)

    def _resume(self, go_on: Callable[[], None]) -> None:
        try:
            go_on()
        except Exception as error:  # what is wrong with one must not keep the others waiting
            told = {"message": "a result of the store could not be used", "exception": error}
            self.get_loop().call_exception_handler(told)
