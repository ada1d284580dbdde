"""Raw bytes on an HTTP connection, through the fast door: with its memory of heads, and without.

Whatever comes, both must answer the same. The byte 0x1e stands between packets; an input goes behind requests with
which the door has learned a few heads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from uvicorn.server import ServerState

from fuzz.speak_websocket import Connection
from relay.config import LogLevel, Settings
from relay.server.app import create_app
from relay.server.fastdoor import FastDoor
from relay.server.fastrequest import FastRequest
from relay.server.knownheads import KnownHeads
from relay.server.run import _uvicorn_config

SEPARATOR = b"\x1e"
TURNS = 20
"""So many turns of the loop are enough for any answer that does not wait for something."""

HEAD = b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"session_id":"s1","client_msg_id":"c%d","prompt":"x"}'
POLL = b"GET /prompts/s1?wait=false HTTP/1.1\r\nHost: x\r\n\r\n"
_VARIABLE = re.compile(rb"\d{13}|[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Times, and ids that were made here."""


def post(number: int) -> bytes:
    """A prompt."""
    body = BODY % number
    return HEAD % len(body) + body


LEARNED = [post(1), post(2), POLL, POLL]
"""What each connection begins with: after this the door knows both heads."""


class Forgetful(KnownHeads):
    """One that knows nothing: everything is parsed."""

    def learn(self, data: bytes, request: FastRequest) -> None:
        """No."""


class Relay:
    """A relay of its own, and what its door answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: type[KnownHeads]) -> None:
        settings = Settings(log_level=LogLevel.ERROR)
        app = create_app(settings)
        self._config = _uvicorn_config(app, settings)
        self._config.load()
        self._loop = loop
        self._memory = memory
        self._running = app.router.lifespan_context(app)
        entering: Any = self._running.__aenter__()
        self._state = dict(loop.run_until_complete(entering))

    def answers(self, packets: Sequence[bytes]) -> tuple[bytes, bool]:
        """What is written to a connection on which these come, and whether it is closed then."""
        return self._loop.run_until_complete(self._answers(packets))

    def close(self) -> None:
        """The end."""
        self._loop.run_until_complete(self._running.__aexit__(None, None, None))

    async def _answers(self, packets: Sequence[bytes]) -> tuple[bytes, bool]:
        connection, server = Connection(self._loop), ServerState()
        door = connection.protocol = FastDoor(self._config, server, dict(self._state), self._loop)
        door.connection_made(connection)
        door._known = self._memory()
        for packet in packets:
            if not connection.closing and connection.protocol is door:
                door.data_received(packet)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        was_closing = connection.closing
        connection.abort()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        return _VARIABLE.sub(b"?", connection.written), was_closing


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    """The target."""
    loop = asyncio.new_event_loop()
    remembering, forgetting = Relay(loop, KnownHeads), Relay(loop, Forgetful)

    def target(data: bytes) -> None:
        packets = [*LEARNED, *data.split(SEPARATOR), post(3), POLL]
        remembered, parsed = remembering.answers(packets), forgetting.answers(packets)
        assert remembered == parsed, (remembered, parsed)

    try:
        yield target
    finally:
        remembering.close()
        forgetting.close()
        loop.close()
