"""server/hangups.py: a caller that hangs up is noticed, and a short poll costs nothing."""

from __future__ import annotations

import asyncio

from starlette.types import Message

from relay.server.hangups import LOOK_SECONDS, HangUps


class Caller:
    """Says something more, then hangs up when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.left = asyncio.Event()
        self.noticed = asyncio.Event()

    async def receive(self) -> Message:
        self.asked += 1
        if self.asked > 1:
            await self.left.wait()
        return {"type": "http.request" if self.asked == 1 else "http.disconnect"}


async def test_a_caller_that_hangs_up_is_noticed() -> None:
    hang_ups, caller = HangUps(), Caller()
    hang_ups.watch(caller.receive, caller.noticed.set)
    hang_ups.look(asyncio.get_running_loop().time() + LOOK_SECONDS)
    caller.left.set()
    await caller.noticed.wait()


async def test_a_poll_that_has_just_begun_is_not_listened_to() -> None:
    hang_ups, caller = HangUps(), Caller()
    forget = hang_ups.watch(caller.receive, caller.noticed.set)
    hang_ups.look(asyncio.get_running_loop().time())
    forget()
    hang_ups.look(asyncio.get_running_loop().time() + LOOK_SECONDS)
    await asyncio.sleep(0)
    assert caller.asked == 0


async def test_nothing_is_told_of_a_poll_that_has_ended() -> None:
    hang_ups, caller = HangUps(), Caller()
    forget = hang_ups.watch(caller.receive, caller.noticed.set)
    hang_ups.look(asyncio.get_running_loop().time() + LOOK_SECONDS)
    await asyncio.sleep(0)
    assert caller.asked > 0
    forget()
    caller.left.set()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not caller.noticed.is_set()
