"""The protocol suite speaks only HTTP and WebSocket to a URL, and could test anyone's relay.

    RELAY_TEST_URL=http://127.0.0.1:8000 .venv/bin/pytest tests/protocol

Without that variable it starts relays of its own: through each door, and on each store.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import httpx2 as httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.protocol.talk import Talk
from tests.setups import SETUPS

GIVEN_URL = os.environ.get("RELAY_TEST_URL")


@pytest.fixture(scope="session", params=["given"] if GIVEN_URL else list(SETUPS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the relay under test is."""
    if GIVEN_URL:
        yield GIVEN_URL
        return
    with SETUPS[request.param](tmp_path_factory.mktemp(request.param)) as url:
        yield url


@pytest.fixture(scope="session")
def http(url: str) -> Iterator[httpx.Client]:
    """One HTTP client for all tests: what one of them leaves behind on the connection would spoil the next."""
    # uvicorn closes a connection that was idle for 5 s, and so does httpx: whoever is second would lose a request.
    with httpx.Client(base_url=url, timeout=30, limits=httpx.Limits(keepalive_expiry=2)) as client:
        yield client


@pytest.fixture
def session_id() -> str:
    """A session that nobody else uses."""
    return f"s-{uuid.uuid4()}"


@pytest.fixture
def talk(http: httpx.Client, session_id: str) -> Talk:
    """The specification's calls, for this test's session."""
    return Talk(http, session_id)


Listen = Callable[..., AbstractContextManager[ClientConnection]]


@pytest.fixture
def listen(url: str, session_id: str) -> Listen:
    """Connects a WebSocket client to this test's session."""
    return partial(connect, f"{url.replace('http', 'ws', 1)}/ws/{session_id}", max_size=None, compression=None)
