"""A call, and whoever waits for it: a task, or somebody who drives a coroutine by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.errors import StoreUnavailable
from relay.store.redis_call import Call, ignored


def a_call() -> Call:
    return Call(b"", None, asyncio.get_running_loop())


async def test_whoever_drives_by_hand_goes_on_in_the_moment_of_the_reply() -> None:
    call, went_on = a_call(), []
    call.then(lambda: went_on.append(call.result()))
    call.answer(b"reply")
    assert went_on == [b"reply"]


async def test_whoever_drives_by_hand_goes_on_in_the_next_turn_if_it_failed() -> None:
    """What fails may do so within somebody else's task."""
    call, went_on = a_call(), []
    call.then(lambda: went_on.append(call.exception()))
    call.fail(ConnectionError("gone"))
    assert went_on == []
    await asyncio.sleep(0)
    [error] = went_on
    assert isinstance(error, StoreUnavailable)
    assert isinstance(error.__cause__, ConnectionError)


async def test_a_task_may_wait_for_it_and_give_up() -> None:
    call, other = a_call(), a_call()

    async def wait(call: Call) -> object:
        return await call

    waiting, giving_up = asyncio.create_task(wait(call)), asyncio.create_task(wait(other))
    await asyncio.sleep(0)
    giving_up.cancel()
    await asyncio.wait([giving_up])
    for each in (call, other):
        each.answer(b"reply")
    assert await waiting == b"reply"
    assert giving_up.cancelled()


async def test_what_is_wrong_with_one_that_goes_on_is_told_and_harms_no_other() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    call = a_call()
    call.then(lambda: 1 // 0)  # type: ignore[arg-type]
    call.answer(b"reply")
    assert isinstance(told[0]["exception"], ZeroDivisionError)


async def test_only_the_first_answer_counts() -> None:
    call = a_call()
    call.answer(b"one")
    call.answer(b"two")
    call.fail(ConnectionError())
    assert await call == b"one"
    nobody = ignored(b"PING")
    nobody.answer(b"PONG")
    with pytest.raises(asyncio.CancelledError):
        await nobody
