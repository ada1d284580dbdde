"""core/waiter.py: how waits end, in a task and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from relay.core.observer import WakeCause
from relay.core.waiter import SLOT_SECONDS, Waiter, Waits


class ByHand:
    """A wait that is driven by callbacks, as the fast door does it."""

    def __init__(self, coroutine: Coroutine[Any, Any, WakeCause]) -> None:
        self._coroutine = coroutine
        self.cause: WakeCause | None = None

    def go_on(self) -> None:
        try:
            waiter = self._coroutine.send(None)
        except StopIteration as done:
            self.cause = done.value
        else:
            waiter.then(self.go_on)


async def begun(*waits: ByHand) -> None:
    """Begin them in a callback of the loop: outside of any task."""
    for wait in waits:
        asyncio.get_running_loop().call_soon(wait.go_on)
    await asyncio.sleep(0)


async def test_a_wait_without_a_task_goes_on_after_whoever_woke_it_is_done() -> None:
    waiter = Waiter(Waits())
    wait = ByHand(waiter.wait(30, 60, by_hand=True))
    await begun(wait)
    waiter.wake(WakeCause.PROMPT)
    assert wait.cause is None
    await asyncio.sleep(0)
    assert wait.cause is WakeCause.PROMPT


async def test_those_woken_in_one_turn_go_on_in_the_order_of_their_waking() -> None:
    waits = Waits()
    waiters = [Waiter(waits) for _ in range(3)]
    ended: list[int] = []

    async def wait(number: int) -> WakeCause:
        cause = await waiters[number].wait(30, 60, by_hand=True)
        ended.append(number)
        return cause

    await begun(*(ByHand(wait(number)) for number in range(3)))
    for number in (2, 0, 1):
        waiters[number].wake(WakeCause.PROMPT)
    await asyncio.sleep(0)
    assert ended == [2, 0, 1]


async def test_one_that_fails_keeps_no_other_from_going_on() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    waits = Waits()
    broken, sound = Waiter(waits), Waiter(waits)

    async def fail() -> WakeCause:
        await broken.wait(30, 60, by_hand=True)
        raise ValueError

    wait = ByHand(sound.wait(30, 60, by_hand=True))
    await begun(ByHand(fail()), wait)
    for waiter in (broken, sound):
        waiter.wake(WakeCause.PROMPT)
    await asyncio.sleep(0)
    assert wait.cause is WakeCause.PROMPT
    assert [type(complaint) for complaint in complaints] == [ValueError]


async def test_a_final_cause_overtakes_the_first_before_the_wait_goes_on() -> None:
    waiter = Waiter(Waits())
    wait = ByHand(waiter.wait(30, 60, by_hand=True))
    await begun(wait)
    waiter.wake(WakeCause.PROMPT)
    waiter.wake(WakeCause.GONE)
    await asyncio.sleep(0)
    assert wait.cause is WakeCause.GONE


async def test_waits_of_one_moment_share_a_timer_and_end_not_before_their_time() -> None:
    loop = asyncio.get_running_loop()
    started: list[float] = []
    call_later = loop.call_later

    def counted(delay: float, *args: Any) -> Any:
        started.append(delay)
        return call_later(delay, *args)

    loop.call_later = counted  # type: ignore[method-assign,assignment]
    now = 1000 * SLOT_SECONDS
    waits = Waits(clock=lambda: now)
    waiters = [Waiter(waits) for _ in range(10)]
    causes = await asyncio.gather(*(waiter.wait(0.03, 60) for waiter in waiters))
    assert set(causes) == {WakeCause.TIMEOUT}
    assert len(started) == 1
    assert 0.03 <= started[0] <= 0.03 + SLOT_SECONDS


async def test_a_waiter_can_wait_again_after_it_was_woken() -> None:
    waiter = Waiter(Waits())
    waiter.wake(WakeCause.PROMPT)
    assert await waiter.wait(30, 60) is WakeCause.PROMPT
    assert await waiter.wait(0, 60) is WakeCause.TIMEOUT
    assert await waiter.wait(30, 0) is WakeCause.SAFETY
