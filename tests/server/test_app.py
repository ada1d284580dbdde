"""server/app.py and server/asgi.py from inside: what a healthy server never shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

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
from tests.server.tokens import ADMIN, CLIENT, bearer


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver")


def door(
    endpoint: Endpoint, telemetry: Telemetry, max_body_bytes: int = 0
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An application with one endpoint, GET /x."""
    guard = Guard(some_settings(), MemoryStore(GENEROUS))
    found = AsgiDoor([Route("GET", "/x", endpoint, FREE, max_body_bytes)], guard, telemetry, Uploads(30), HangUps())

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

    def add_prompt(self, entry: NewEntry) -> Outcome:
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


async def test_a_token_that_was_let_in_once_is_let_in_to_nothing_else() -> None:
    app = create_app(some_settings(client_token=SecretStr(CLIENT), admin_token=SecretStr(ADMIN)))
    prompt = {"session_id": "s1", "prompt": "x"}
    async with app.router.lifespan_context(app), client(app) as http:
        for _ in range(2):
            assert (await http.post("/prompt", json=prompt, headers=bearer(CLIENT))).status_code == 200
            assert (await http.get("/sessions/s1", headers=bearer(CLIENT))).status_code == 403
            assert (await http.get("/sessions/s1", headers=bearer(ADMIN))).status_code == 200
            assert (await http.delete("/sessions/s2", headers=bearer(CLIENT))).status_code == 403
            assert (await http.post("/prompt", json=prompt, headers=bearer(CLIENT + "x"))).status_code == 401
            assert (await http.post("/prompt", json=prompt)).status_code == 401
            elsewhere = {**bearer(CLIENT), "origin": "https://elsewhere.example"}
            assert (await http.post("/prompt", json=prompt, headers=elsewhere)).status_code == 403


async def test_a_caller_that_was_let_in_without_a_token_is_looked_at_each_time() -> None:
    async with client(create_app(some_settings())) as http:
        for _ in range(2):
            local = {"host": "127.0.0.1", **bearer("x")}
            assert (await http.get("/sessions", headers=local)).status_code == 200
            proxied = {**local, "x-forwarded-for": "192.0.2.1"}
            assert (await http.get("/sessions", headers=proxied)).status_code == 401


def a_message(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize("messages", [[b"hello"], [b"he", b"llo"], [b"", b"hello", b""]])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_body_is_read_however_it_comes(messages: list[bytes], waits: bool, is_coroutine: bool) -> None:
    async def echo(request: Request) -> Answer:
        return Answer(200, request.content)

    coming = [a_message(body, more=at < len(messages)) for at, body in enumerate(messages, start=1)]
    sent: list[Message] = []

    async def receive() -> Message:
        if waits:
            await asyncio.sleep(0)
        return coming.pop(0)

    def receive_in_a_task() -> asyncio.Task[Message]:
        return asyncio.create_task(receive())

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "query_string": b""}
    app = door(echo, Telemetry(some_settings()), max_body_bytes=5)
    await app(scope, receive if is_coroutine else receive_in_a_task, send)
    assert [message.get("body") for message in sent] == [None, b"hello"]
