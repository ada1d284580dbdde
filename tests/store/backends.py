"""The stores that exist. Every test of the contract runs on each and never asks which one it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from relay.store.base import Listener, Store, StoreLimits
from relay.store.memory import MemoryStore
from relay.store.sqlite import SqliteStore

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


BACKENDS = [Backend("memory", open_memory, survives=False), Backend("sqlite", open_sqlite)]
