"""The stores that exist. Every test of the contract runs on each and never asks which one it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from relay.store.base import Listener, Store, StoreLimits
from relay.store.memory import MemoryStore
from relay.store.redis import RedisStore
from relay.store.sqlite import SqliteStore
from tests.store.redis_server import binaries, shared_server

Open = Callable[[Path, Listener, StoreLimits], AbstractAsyncContextManager[Store]]


@dataclass(frozen=True)
class Backend:
    """A store and how to open it for a test."""

    name: str
    open: Open
    survives: bool = True
    """Whether what it keeps is there after a restart."""


@asynccontextmanager
async def open_memory(_: Path, listener: Listener, limits: StoreLimits) -> AsyncIterator[Store]:
    """The memory store."""
    store = MemoryStore(limits)
    await store.open(listener)
    yield store
    await store.close()


@asynccontextmanager
async def open_sqlite(folder: Path, listener: Listener, limits: StoreLimits) -> AsyncIterator[Store]:
    """A file of the test's own."""
    store = SqliteStore(folder / "relay.db", limits)
    await store.open(listener)
    yield store
    await store.close()


def open_redis(name: str) -> Open:
    """A part of a real server that no other test uses, the same for the same folder."""

    @asynccontextmanager
    async def open_part(folder: Path, listener: Listener, limits: StoreLimits) -> AsyncIterator[Store]:
        store = RedisStore(shared_server(name).url, limits, prefix=f"relay-{folder}")
        await store.open(listener)
        yield store
        await store.close()

    return open_part


BACKENDS = [Backend("memory", open_memory, survives=False), Backend("sqlite", open_sqlite)]
BACKENDS += [Backend(name, open_redis(name)) for name in binaries()]
