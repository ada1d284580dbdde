"""The protocol suite speaks only HTTP and WebSocket to a URL, and could test anyone's relay.

    RELAY_TEST_URL=http://127.0.0.1:8000 .venv/bin/pytest tests/protocol

RELAY_TEST_TOKEN is an admin's token for it, if it wants one. Without these variables the suite starts relays of its
own: through each door, on each store, in open mode and in token mode.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import httpx2 as httpx
import pytest
from websockets.sync.client import ClientConnection

from tests.protocol.talk import Address, Talk
from tests.setups import SETUPS

GIVEN_URL = os.environ.get("RELAY_TEST_URL")


@pytest.fixture(scope="session", params=["given"] if GIVEN_URL else list(SETUPS))
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Where the relay under test is."""
    if GIVEN_URL:
        yield Address(GIVEN_URL, os.environ.get("RELAY_TEST_TOKEN"))
        return
    with SETUPS[request.param](tmp_path_factory.mktemp(request.param)) as address:
        yield address


@pytest.fixture(scope="session")
def http(at: Address) -> Iterator[httpx.Client]:
    """One HTTP client for all tests: what one of them leaves behind on the connection would spoil the next."""
    # uvicorn closes a connection that was idle for 5 s, and so does httpx: whoever is second would lose a request.
    with at.client(limits=httpx.Limits(keepalive_expiry=2)) as client:
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
def listen(at: Address, session_id: str) -> Listen:
    """Connects a WebSocket client to this test's session."""
    return partial(at.connect, f"/ws/{session_id}", max_size=None, compression=None)
