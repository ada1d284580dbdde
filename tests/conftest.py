"""Fixtures for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A relay with default settings, for tests that look at the process as well as at its answers."""
    with running() as server:
        yield server
