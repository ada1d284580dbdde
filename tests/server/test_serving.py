"""server/serving.py: endpoints that wait are gone on with once, and know when their caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fuzz.speak_websocket import Connection
from relay.server.asgi import AsgiDoor
from relay.server.auth import FREE
from relay.server.fastdoor import FastDoor
from relay.server.hangups import HangUps
from relay.server.http import Answer, Request, Route
from relay.server.uploads import Uploads
from tests.server.doors import doors

ASK = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


class Slow:
    """An endpoint that waits for its store before it listens to its caller, as a poll does on Redis."""

    def __init__(self) -> None:
        self.store: list[asyncio.Future[None]] = []
        self.gone = 0

    async def __call__(self, request: Request) -> Answer:
        self.store.append(asyncio.get_running_loop().create_future())
        await self.store[-1]
        forget = request.when_gone(self._count)
        self.store.append(asyncio.get_running_loop().create_future())
        try:
            await self.store[-1]
        finally:
            forget()
        return Answer(200, b"{}")

    def _count(self) -> None:
        self.gone += 1

    async def answer(self, number: int) -> None:
        """Let one of its waits end."""
        self.store[number].set_result(None)
        await turns()


@asynccontextmanager
async def served(slow: Slow) -> AsyncIterator[tuple[FastDoor, Connection]]:
    async with doors(1) as [(door, connection)]:
        whole = door._door
        routes = [Route("GET", "/slow", slow, FREE)]
        door._door = AsgiDoor(routes, whole.guard, whole.telemetry, Uploads(20), HangUps())
        yield door, connection
        connection.abort()
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(door: FastDoor, data: bytes = ASK) -> None:
    """Called by the loop, as a transport would: outside of any task."""
    asyncio.get_running_loop().call_soon(door.data_received, data)
    await turns()


async def test_a_request_that_waits_is_told_that_its_caller_has_gone_though_the_same_was_asked_again() -> None:
    slow = Slow()
    async with served(slow) as (door, connection):
        for number in (0, 2):  # the second one is learnt
            await ask(door)
            await slow.answer(number)
            await slow.answer(number + 1)
        assert connection.written.count(b"HTTP/1.1 200 ") == 2
        await ask(door)
        await ask(door)  # waits behind it
        await slow.answer(4)
        assert not slow.gone
        connection.abort()
        await turns()
        assert slow.gone


async def test_a_wait_that_is_cancelled_is_answered_all_the_same() -> None:
    slow = Slow()
    async with served(slow) as (door, connection):
        await ask(door)
        slow.store[0].cancel()
        await turns()
        assert connection.written.startswith(b"HTTP/1.1 500 ")
        await ask(door)
        await slow.answer(1)
        await slow.answer(2)
        assert connection.written.count(b"HTTP/1.1 200 ") == 1
