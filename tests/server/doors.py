"""The protocol class of `relay serve` on transports without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from uvicorn.server import ServerState

from fuzz.speak_websocket import Connection
from relay.server.app import create_app
from relay.server.fastdoor import FastDoor
from relay.server.run import _uvicorn_config
from tests.factories import some_settings


@asynccontextmanager
async def doors(count: int) -> AsyncIterator[list[tuple[FastDoor, Connection]]]:
    """So many connections to one relay."""
    settings = some_settings()
    app = create_app(settings)
    config = _uvicorn_config(app, settings)
    config.load()
    async with app.router.lifespan_context(app) as state:
        pairs = []
        for _ in range(count):
            connection = Connection(asyncio.get_running_loop())
            door = connection.protocol = FastDoor(config, ServerState(), dict(state or {}))
            door.connection_made(connection)
            pairs.append((door, connection))
        yield pairs
