"""What the tests of the core share."""

from __future__ import annotations

import pytest

from relay.store.memory import MemoryStore
from tests.core.world import SlowStore


@pytest.fixture(params=[MemoryStore, SlowStore])
def store_class(request: pytest.FixtureRequest) -> type[MemoryStore]:
    store_class: type[MemoryStore] = request.param
    return store_class
