"""A relay behind each door, watched: what a client does must leave no trace in its log."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from tests.protocol.conftest import GIVEN_URL
from tests.protocol.talk import Talk
from tests.protocol.websocket.frames import RawClient
from tests.serving import DOORS, Server, running

_COMPLAINT = re.compile(r'Traceback|^(WARNING|ERROR|CRITICAL)|"level":"(warning|error|critical)"')


class Watched:
    """A relay, and what its log may not say."""

    def __init__(self, url: str, http: httpx.Client, server: Server | None) -> None:
        self.url = url
        self._http = http
        self._server = server

    @contextmanager
    def dialled(self) -> Iterator[RawClient]:
        """A connection without a handshake. After the block the relay still works, and its log has no complaint."""
        talk = Talk(self._http, f"s-{uuid.uuid4()}")
        seen = len(self._server.lines) if self._server else 0
        client = RawClient(self.url)
        try:
            yield client
        finally:
            client.hang_up()
        talk.round_trip()
        if self._server:
            self._server.wait_for_line(f'"response_posted","session_id":"{talk.session_id}"')
            assert not [line for line in self._server.lines[seen:] if _COMPLAINT.search(line)]

    @contextmanager
    def client(self) -> Iterator[RawClient]:
        """A client that listens. After the block it is gone, the relay still works, and its log has no complaint."""
        session_id = f"s-{uuid.uuid4()}"
        with self.dialled() as client:
            client.open(f"/ws/{session_id}")
            yield client
            client.hang_up()
            if self._server:
                self._server.wait_for_line(f'"client_disconnected","session_id":"{session_id}"')


@pytest.fixture(scope="session", params=["given"] if GIVEN_URL else list(DOORS))
def relay(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """The relay under test; its store plays no part here."""
    if GIVEN_URL:
        with httpx.Client(base_url=GIVEN_URL, timeout=30) as http:
            yield Watched(GIVEN_URL, http, None)
        return
    with (
        running(request.param) as server,
        httpx.Client(base_url=server.url, timeout=30, limits=httpx.Limits(keepalive_expiry=2)) as http,
    ):
        yield Watched(server.url, http, server)


@pytest.fixture(autouse=True)
def _named_difference(request: pytest.FixtureRequest) -> None:
    """What plain uvicorn cannot do has its reason beside the test; whoever mends it must delete the note."""
    difference = request.node.get_closest_marker("not_by_uvicorn")
    if difference and request.node.callspec.params["relay"] == "uvicorn":
        request.applymarker(pytest.mark.xfail(reason=difference.args[0], strict=True, **difference.kwargs))
