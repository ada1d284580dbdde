"""server/ws.py from inside: moments that no client can hit on purpose."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Scope

from relay.server.guard import Guard
from relay.server.telemetry import Telemetry
from relay.server.ws import Sockets
from tests.core.world import make_world
from tests.factories import some_settings

HANDSHAKE: Scope = {
    "type": "websocket",
    "path": "/ws/s1",
    "raw_path": b"/ws/s1",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
    "client": ("127.0.0.1", 50_000),
    "scheme": "ws",
}


async def test_a_client_that_leaves_as_its_session_is_deleted_is_logged_with_its_own_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    world = await make_world()
    telemetry = Telemetry(some_settings(log_format="json"))
    guard = Guard(some_settings(), world.store)
    sockets = Sockets(world.relay, guard, some_settings(), telemetry, lambda: world.now_ms)
    messages: list[Message] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> Message:
        message = messages.pop(0)
        if not messages:
            asyncio.get_running_loop().call_soon(world.hub.session_deleted, "s1")
        return message

    async def send(_: Message) -> None:
        pass

    await sockets.serve("s1", HANDSHAKE, receive, send)
    telemetry.flush()
    assert '"close_code":1000' in capfd.readouterr().err
