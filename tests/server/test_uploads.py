"""server/uploads.py: a body that takes too long is cut, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest

from relay.errors import RequestTimeout
from relay.server.uploads import Uploads


async def arriving(body: asyncio.Future[bytes]) -> bytes:
    return await body


async def test_a_body_that_takes_too_long_is_cut() -> None:
    loop = asyncio.get_running_loop()
    uploads = Uploads(30)
    body: asyncio.Future[bytes] = loop.create_future()
    reading = asyncio.create_task(uploads.read(arriving(body)))
    await asyncio.sleep(0)
    uploads.cut(loop.time() + 29)
    await asyncio.sleep(0)
    assert not reading.done()
    uploads.cut(loop.time() + 31)
    uploads.cut(loop.time() + 32)
    with pytest.raises(RequestTimeout, match="the body takes longer than 30 s"):
        await reading


async def test_a_body_that_has_come_is_left_alone() -> None:
    loop = asyncio.get_running_loop()
    uploads = Uploads(30)
    body: asyncio.Future[bytes] = loop.create_future()
    body.set_result(b"x")
    assert await uploads.read(arriving(body)) == b"x"
    uploads.cut(loop.time() + 100)
    await asyncio.sleep(0)


async def test_a_request_that_is_cancelled_is_cancelled() -> None:
    uploads = Uploads(30)
    reading = asyncio.create_task(uploads.read(arriving(asyncio.get_running_loop().create_future())))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
