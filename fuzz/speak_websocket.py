"""Raw bytes on a WebSocket connection, through the protocol classes and the application of `relay serve`.

Both that it has: the fast door with its sockets, and uvicorn's class with our additions, for compression.

The first byte of an input says how the rest is cut into packets, and whether they come before the handshake is
answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn.server import ServerState

from relay.config import LogLevel, Settings
from relay.server.app import create_app
from relay.server.fastdoor import FastDoor
from relay.server.run import _uvicorn_config

HANDSHAKE = (
    b"GET /ws/fuzz HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
"""As the HTTP protocol class hands it on, with names in lower case."""
TURNS = 1_000
"""The application needs a few turns of the loop for each packet; so many only if it hangs."""


class Connection(asyncio.Transport):
    """A connection without a network, as strict as a real one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: Any = None
        self.written = b""
        self.paused = False
        self.ended = False
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        if self.ended:
            raise RuntimeError("write() after write_eof()")
        if not self.closing:
            self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused and not self.closing

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class _Collector(logging.Handler):
    def __init__(self, complaints: list[object]) -> None:
        super().__init__(logging.WARNING)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        self._complaints.append(record.getMessage())


@contextmanager
def opened(protocol_class: Any = FastDoor) -> Iterator[Callable[[bytes], None]]:
    """The target, with a relay behind it."""
    loop = asyncio.new_event_loop()
    settings = Settings(log_level=LogLevel.ERROR, max_frames_per_second=1_000_000)
    app = create_app(settings)
    complaints: list[object] = []
    app.state.telemetry.internal_error = complaints.append
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    handler = _Collector(complaints)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    config = _uvicorn_config(app, settings)
    config.load()
    running = app.router.lifespan_context(app)
    entering: Any = running.__aenter__()
    app_state = dict(loop.run_until_complete(entering))

    def target(data: bytes) -> None:
        state = ServerState()
        connection = Connection(loop)
        connection.protocol = protocol_class(config, state, app_state, loop)
        loop.run_until_complete(_speak(connection, state, data))
        assert not complaints, complaints
        check_said(connection.written)

    try:
        yield target
    finally:
        loop.run_until_complete(running.__aexit__(None, None, None))
        logger.removeHandler(handler)
        loop.close()


async def _speak(connection: Connection, state: ServerState, data: bytes) -> None:
    """A whole conversation: handshake, packets, the end."""
    how, said = (data[0], data[1:]) if data else (0, b"")
    size = (how & 0x7F) or len(said) or 1
    connection.protocol.connection_made(connection)
    connection.protocol.data_received(HANDSHAKE)
    if how < 0x80:
        await _until(lambda: b"\r\n\r\n" in connection.written)
    for start in range(0, len(said), size):
        await _until(lambda: not connection.paused or connection.closing)
        if connection.closing:
            break
        connection.protocol.data_received(said[start : start + size])
    await _until(lambda: not connection.paused or connection.closing)
    connection.close()
    await _until(lambda: not state.tasks)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not become so")


def check_said(written: bytes) -> None:
    """The server's side: an answer to the handshake, whole frames, and nothing after a close frame."""
    head, _, frames = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), written
    last = -1
    while frames:
        assert last != 8, "a frame after the close frame"
        assert frames[0] in (0x81, 0x88, 0x8A), frames
        assert frames[1] <= 126, frames
        start, size = (4, int.from_bytes(frames[2:4], "big")) if frames[1] == 126 else (2, frames[1])
        assert len(frames) >= start + size, frames
        payload, last = frames[start : start + size], frames[0] & 0x0F
        if last == 8:
            assert not payload or 1000 <= int.from_bytes(payload[:2], "big") <= 4999, payload
        frames = frames[start + size :]
