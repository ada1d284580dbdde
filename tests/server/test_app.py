"""server/app.py and server/asgi.py from inside: what a healthy server never shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

from relay.core.hub import Hub
from relay.errors import StoreUnavailable
from relay.server.app import create_app
from relay.server.asgi import AsgiDoor
from relay.server.auth import FREE
from relay.server.guard import Guard
from relay.server.hangups import HangUps
from relay.server.http import Answer, Endpoint, Request, Route
from relay.server.telemetry import Telemetry
from relay.server.uploads import Uploads
from relay.store.base import Entry, Grant, NewEntry, Outcome
from relay.store.memory import MemoryStore
from tests.factories import GENEROUS, some_settings
from tests.protocol.talk import assert_error
from tests.server.tokens import ADMIN, bearer


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver")


def door(endpoint: Endpoint, telemetry: Telemetry) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An application with one endpoint, GET /x."""
    guard = Guard(some_settings(), MemoryStore(GENEROUS))
    found = AsgiDoor([Route("GET", "/x", endpoint, FREE)], guard, telemetry, Uploads(30), HangUps())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint_and_session = found.find("GET", scope["path"])
        assert endpoint_and_session is not None
        await found.serve(*endpoint_and_session, scope, receive, send)

    return app


async def test_row_23_an_internal_error_tells_nothing_of_the_inside(capfd: pytest.CaptureFixture[str]) -> None:
    async def broken(_: Request) -> Answer:
        raise RuntimeError("the password is 1234")

    telemetry = Telemetry(some_settings())
    async with client(door(broken, telemetry)) as http:
        answer = await http.get("/x")
    telemetry.flush()
    assert (answer.status_code, answer.json()) == (500, {"error": "Internal server error", "code": "internal"})
    assert '"event":"internal_error"' in capfd.readouterr().err


class LostStore(MemoryStore):
    """A store that does not answer."""

    async def check(self) -> None:
        raise StoreUnavailable

    async def add_prompt(self, entry: NewEntry) -> Outcome:
        raise StoreUnavailable

    async def pending(self, session_id: str) -> Sequence[Entry]:
        raise StoreUnavailable

    async def take_tokens(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        raise StoreUnavailable


@pytest.mark.parametrize("token", ["", ADMIN])
async def test_row_24_a_store_that_cannot_be_reached_is_503_everywhere_but_livez(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("relay.store.MemoryStore", LostStore)
    async with client(create_app(some_settings(admin_token=SecretStr(token)))) as http:
        http.headers |= bearer(token or None)
        for answer in (
            await http.get("/healthz"),
            await http.get("/readyz"),
            await http.get("/prompts/s1"),
            await http.post("/prompt", json={"session_id": "s1", "prompt": "x"}),
        ):
            assert_error(answer, 503, "store_unavailable", "Service temporarily unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200


async def test_a_server_that_is_about_to_stop_is_alive_but_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    hubs: list[Hub] = []
    make = Hub.__init__

    def remember(hub: Hub, *given: Any) -> None:
        make(hub, *given)
        hubs.append(hub)

    monkeypatch.setattr(Hub, "__init__", remember)
    async with client(create_app(some_settings())) as http:
        assert (await http.get("/readyz")).status_code == 200
        hubs[0].drain()
        assert_error(await http.get("/readyz"), 503, "draining", "The server is stopping")
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/livez")).status_code == 200


async def test_it_can_be_mounted_inside_another_application() -> None:
    inner = create_app(some_settings())
    outer = FastAPI()
    outer.mount("/relay", inner)
    async with inner.router.lifespan_context(inner), client(outer) as http:
        stored = await http.post("/relay/prompt", json={"session_id": "s1", "prompt": "x", "client_msg_id": "p1"})
        assert stored.json() == {"stored": True, "client_msg_id": "p1"}
        assert (await http.get("/relay/prompts/s1")).json()[0]["client_msg_id"] == "p1"
        assert (await http.put("/relay/prompt")).status_code == 405
        assert (await http.get("/relay/sessions/s1/x")).status_code == 404
