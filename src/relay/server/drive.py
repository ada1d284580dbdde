"""Coroutines begun by hand: what need not wait is done at once, and only what waits becomes a task.

A task costs more than many an endpoint. Nothing that is begun here may ask for the current task before it first waits.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Waiting(Exception):
    """The coroutine has to wait; `rest` is awaitable, once, and ends with its result."""

    def __init__(self, rest: Coroutine[Any, Any, Any]) -> None:
        super().__init__()
        self.rest = rest


def begin(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, if it need not wait. Raises Waiting if it must, or whatever it raises itself."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise Waiting(rest(coroutine, waits_for))


async def rest(coroutine: Coroutine[Any, Any, T], waits_for: object) -> T:
    """Go on with a coroutine that was begun by hand, by `send`, and now waits."""
    return await _resumed(coroutine, waits_for)  # a coroutine itself: since Python 3.12 tasks take nothing else


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Go on, as part of a task, with a coroutine that was begun by hand and now waits."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: PERF203  # cancelled, most likely; it may have to tidy up first
            try:
                waits_for = coroutine.throw(error)
            except StopIteration as done:
                return cast(T, done.value)
        else:
            return cast(T, (yield from coroutine))


@types.coroutine
def _running() -> Generator[Any, Any, None]:
    coroutine = yield
    while True:
        # By no name: a result may be large, and the next coroutine long in coming.
        coroutine = yield (yield from coroutine)


def runner() -> Generator[Any, Any, None]:
    """Runs coroutines, one after the other: given one by `send`, it returns the result, or what is waited for.

    In the latter case it is to be sent None when that has come. What a coroutine raises ends it. A coroutine by itself
    returns its result by raising StopIteration, which takes as long as to decode a message.
    """
    running = _running()
    next(running)
    return running
