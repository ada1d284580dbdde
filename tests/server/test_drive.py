"""server/drive.py: coroutines that are begun by hand."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from relay.server.drive import Waiting, begin, runner


async def test_what_need_not_wait_is_done_at_once() -> None:
    async def inner() -> int:
        return 1

    async def quick() -> int:
        return await inner() + 1

    assert begin(quick()) == 2


async def test_what_it_raises_comes_out() -> None:
    async def wrong() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        begin(wrong())


async def test_what_waits_goes_on_in_a_task_where_it_stopped() -> None:
    steps: list[object] = []
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def slow() -> str:
        steps.append("begun")
        steps.append(await first)
        await asyncio.sleep(0)
        steps.append(asyncio.current_task())
        return "done"

    with pytest.raises(Waiting) as waiting:
        begin(slow())
    assert steps == ["begun"]
    task = asyncio.create_task(waiting.value.rest)
    first.set_result("heard")
    assert await task == "done"
    assert steps == ["begun", "heard", task]


async def test_a_cancelled_wait_can_tidy_up() -> None:
    tidied: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with pytest.raises(Waiting) as waiting:
        begin(slow())
    task = asyncio.create_task(waiting.value.rest)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tidied == [True]


async def test_a_failed_wait_raises_where_it_waited() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow() -> str:
        try:
            await future
        except ValueError:
            return "caught"
        return "not raised"

    with pytest.raises(Waiting) as waiting:
        begin(slow())
    future.set_exception(ValueError())
    assert await asyncio.create_task(waiting.value.rest) == "caught"


async def test_a_runner_runs_one_after_the_other_and_tells_what_each_waits_for() -> None:
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def quick(number: int) -> int:
        return number

    async def slow() -> int:
        return await first + 1

    running = runner()
    assert [running.send(quick(number)) for number in (1, 2)] == [1, 2]
    assert running.send(slow()) is first
    first.set_result(3)
    assert running.send(None) == 4
    assert running.send(quick(5)) == 5


async def test_what_raises_ends_its_runner() -> None:
    async def wrong() -> None:
        raise KeyError("x")

    running = runner()
    with pytest.raises(KeyError):
        running.send(wrong())
    with pytest.raises(StopIteration):
        next(running)


async def test_a_runner_holds_no_result() -> None:
    class Large:
        pass

    async def large() -> Large:
        return Large()

    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    running = runner()
    result = weakref.ref(running.send(large()))
    assert result() is None
    result = weakref.ref(running.send(large()))
    running.send(slow())
    assert result() is None
