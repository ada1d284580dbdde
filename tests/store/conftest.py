"""Each test of the contract, on each backend; and Redis stores for what is Redis's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay.store.base import Store
from relay.store.redis import RedisStore
from tests.factories import GENEROUS, Listening
from tests.store.backends import BACKENDS, Backend
from tests.store.redis_server import RedisServer
from tests.store.redis_waits import Connect


@pytest.fixture(params=[pytest.param(backend, id=backend.name) for backend in BACKENDS])
def backend(request: pytest.FixtureRequest) -> Backend:
    """One of the stores."""
    backend: Backend = request.param
    return backend


@pytest.fixture
def listening() -> Listening:
    """Who is told what the store has kept."""
    return Listening()


LimitedStore = Callable[..., AbstractAsyncContextManager[Store]]


@pytest.fixture
def limited(backend: Backend, tmp_path: Path, listening: Listening) -> LimitedStore:
    """Opens a store with some limits other than the generous ones."""

    def open_with(**limits: Any) -> AbstractAsyncContextManager[Store]:
        return backend.open(tmp_path, listening, msgspec.structs.replace(GENEROUS, **limits))

    return open_with


@pytest.fixture
async def store(limited: LimitedStore) -> AsyncIterator[Store]:
    """An open, empty store."""
    async with limited() as store:
        yield store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that may be harmed; what it acknowledged is on disk."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()


@pytest.fixture
async def connect(server: RedisServer) -> AsyncIterator[Connect]:
    """Opens stores on the server, and closes them in the end."""
    async with AsyncExitStack() as stack:

        async def connect(
            listener: Listening | None = None, *, url: str = server.url, max_pending: int = 10_000, **options: Any
        ) -> RedisStore:
            limits = msgspec.structs.replace(GENEROUS, max_pending_per_session=max_pending)
            store = RedisStore(url, limits, **options)
            await store.open(listener or Listening())
            stack.push_async_callback(store.close)
            return store

        yield connect
