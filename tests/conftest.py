"""Fixtures for every test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import aiosqlite.core
import pytest

from tests.serving import Server, running

# A test that fails leaves its store open, and threads that are no daemons would keep the run from ever ending.
aiosqlite.core.Thread = partial(threading.Thread, daemon=True)  # type: ignore[attr-defined,assignment]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A relay with default settings, for tests that look at the process as well as at its answers."""
    with running() as server:
        yield server
