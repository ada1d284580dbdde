"""Each test of the contract, on each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay.store.base import Store
from tests.factories import GENEROUS, Listening
from tests.store.backends import BACKENDS, Backend


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
