"""How long a connection is kept that asks for nothing: the protocol class on a transport without a network."""

from __future__ import annotations

import asyncio

import pytest

from relay.server.run import KEEP_ALIVE_SECONDS
from tests.server.doors import doors

ASK = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("ask", "seconds"), [(ASK, KEEP_ALIVE_SECONDS), (b"", 10), (ASK + ASK[:20], 10)], ids=["idle", "silent", "half"]
)
async def test_a_connection_ends_when_its_time_is_up_and_not_before(ask: bytes, seconds: float) -> None:
    async with doors(1) as [(door, connection)]:
        if ask:
            door.data_received(ask)
            await asyncio.sleep(0)  # answers are written at the end of the turn
            assert connection.written.startswith(b"HTTP/1.1 200 ")
        door.look(0.0)
        door.look(seconds)
        assert connection.protocol is door
        assert not connection.closing
        door.look(seconds + 1)
        # Closed, or given to whoever sees it out with a 408.
        assert connection.closing or connection.protocol is not door
        assert (b"HTTP/1.1 408 " in connection.written) is (len(ask) > len(ASK))
