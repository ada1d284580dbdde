"""Waiting for a Redis store in tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.errors import StoreUnavailable
from relay.store.redis import RedisStore

Connect = Callable[..., Any]
"""The fixture `connect`: opens stores on a server."""


async def until(holds: Callable[[], object], seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen in {seconds:g} s"
        await asyncio.sleep(0.005)


async def until_healthy(store: RedisStore, seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not await healthy(store):
        assert time.monotonic() < deadline, "the store did not recover in time"
        await asyncio.sleep(0.02)


async def healthy(store: RedisStore) -> bool:
    try:
        await store.check()
    except StoreUnavailable:
        return False
    return True


async def refused(*calls: Callable[[], Awaitable[object]]) -> None:
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
