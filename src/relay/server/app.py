"""`create_app(settings)`: puts the parts together and gives the ASGI application."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay import __version__
from relay.config import Settings
from relay.core.hub import Hub
from relay.core.relay import Relay
from relay.errors import MethodNotAllowed, NotFound, RelayError, StartupError
from relay.server import openapi
from relay.server.asgi import AsgiDoor, route_path
from relay.server.fastfeed import SOCKETS_KEY, FastSockets
from relay.server.guard import Guard
from relay.server.hangups import LOOK_SECONDS, HangUps
from relay.server.http import Route, error_answer
from relay.server.ids import Ids
from relay.server.logs import tidy_uvicorn
from relay.server.pages import docs_page
from relay.server.peers import STATE_KEY, Peers
from relay.server.rest import Rest
from relay.server.serving import DOOR_KEY
from relay.server.signals import call_on_stop
from relay.server.telemetry import Telemetry
from relay.server.uploads import Uploads
from relay.server.ws import Sockets, ping_frame, session_of
from relay.store import make_store

STALL_CHECK_SECONDS = 1.0
LAG_CHECK_SECONDS = 0.5
SWEEP_SECONDS = 60.0


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class RelayApp(FastAPI):
    """FastAPI, with our endpoints served before its router is asked."""

    door: AsgiDoor
    sockets: Sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            path = route_path(scope) if scope.get("root_path") else scope["path"]
            door = self.door
            found = door.find(scope["method"], path)
            if found is None:
                await door.pass_on(super().__call__, scope, receive, send)
            else:
                await door.serve(found[0], found[1], scope, receive, send)
        elif kind == "websocket" and (session_id := session_of(route_path(scope))):
            await self.sockets.serve(session_id, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The contract, with how to say who you are."""
        schema = super().openapi()
        schema["components"]["securitySchemes"] = openapi.SECURITY_SCHEMES
        return schema


def create_app(settings: Settings) -> FastAPI:
    """The relay as an ASGI application. Raises StartupError if the settings name no store that we have."""
    telemetry = Telemetry(settings)
    hub = Hub(settings, telemetry)
    store = make_store(settings)
    relay = Relay(store, hub, settings, telemetry, now_ms=now_ms, new_id=Ids())
    guard = Guard(settings, store)
    rest = Rest(relay, hub, guard, settings, telemetry, now_ms)
    sockets = Sockets(relay, guard, settings, telemetry, now_ms)
    peers = Peers(settings, telemetry)
    fast_sockets = FastSockets(relay, guard, peers, settings, telemetry, now_ms, hub.waits)
    uploads = Uploads(settings.body_timeout_seconds)
    hang_ups = HangUps()
    telemetry.gauge("relay_connected_clients", "WebSocket clients connected now.", lambda: hub.subscribers)
    telemetry.gauge("relay_waiting_polls", "Polls waiting now.", lambda: hub.waiters)
    telemetry.gauge(
        "relay_open_connections", "Connections of any kind; with `relay serve`.", lambda: len(peers.connections or ())
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        def stop() -> None:
            if not hub.draining:
                telemetry.log("server_stopping", clients=hub.subscribers, waiting_polls=hub.waiters)
                hub.drain()

        tidy_uvicorn()
        if settings.insecure and not settings.token_mode:
            telemetry.log("server_insecure")
        try:
            await store.open(hub)
        except StartupError as exc:
            # Whoever runs us only says that it failed; the filter above keeps the traceback out of the log.
            print(f"relay: {exc}", file=sys.stderr, flush=True)  # noqa: T201
            raise
        try:
            with call_on_stop(stop):
                async with _chores(relay, hub, peers, uploads, hang_ups, settings, telemetry):
                    yield {STATE_KEY: peers, DOOR_KEY: app.door, SOCKETS_KEY: fast_sockets}
        finally:
            await store.close()
            await asyncio.to_thread(telemetry.flush)

    app = RelayApp(
        title=openapi.TITLE,
        version=__version__,
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={HTTPException: _framework_error},
        telemetry={"logs": False},  # its log records would carry what callers sent
    )
    app.door = AsgiDoor(rest.routes(), guard, telemetry, uploads, hang_ups)
    for route in rest.routes():
        _declare(app, route, token_mode=settings.token_mode)

    @app.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.sockets = sockets
    app.router.default = _unrouted(sockets)
    app.state.telemetry = telemetry
    return app


def _declare(app: RelayApp, route: Route, *, token_mode: bool) -> None:
    """Tell FastAPI of an endpoint: for its OpenAPI, for 405, and for an app that is mounted inside another."""

    async def endpoint() -> None:
        """Never called: the route's ASGI app below is put in its place."""

    description: dict[str, Any] = openapi.describe(route, token_mode=token_mode) or {"include_in_schema": False}
    declared = APIRoute(
        route.path,
        endpoint,
        methods=[route.method],
        operation_id=route.endpoint.__name__,
        response_class=Response,
        **description,
    )

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        session_id = scope["path_params"].get("session_id", "")
        await app.door.serve(route, session_id, scope, receive, send)

    declared.app = serve
    app.router.routes.append(declared)


def _unrouted(sockets: Sockets) -> ASGIApp:
    """What FastAPI's router does not know: Starlette alone would close a WebSocket with a bare 403."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await sockets.refuse_path(scope, receive, send)
        else:
            raise HTTPException(404)

    return refuse


async def _framework_error(request: StarletteRequest, exc: Exception) -> Response:
    """Errors that the framework raises by itself, in our shape."""
    assert isinstance(exc, HTTPException)
    headers = {"cache-control": "no-store"}
    error: RelayError = NotFound("see /docs for the paths that there are")
    if exc.status_code == 405:
        error = MethodNotAllowed("see /docs for the methods of each path")
        # The router knows of one method only, that of the first route with this path.
        methods = request.app.door.methods(request.scope["path"])
        headers["allow"] = ", ".join(methods) or (exc.headers or {}).get("Allow", "")
    request.app.state.telemetry.request_refused(error)
    answer = error_answer(error)
    return Response(answer.body, answer.status, headers, media_type="application/json")


@asynccontextmanager
async def _chores(
    relay: Relay,
    hub: Hub,
    peers: Peers,
    uploads: Uploads,
    hang_ups: HangUps,
    settings: Settings,
    telemetry: Telemetry,
) -> AsyncIterator[None]:
    """What has to be done from time to time, one task for all sessions and sockets."""
    loop = asyncio.get_running_loop()
    ttl_seconds = settings.session_ttl_seconds or SWEEP_SECONDS

    async def ping() -> None:
        for _ in hub.ping(ping_frame(now_ms())):
            await asyncio.sleep(0)

    async def close_stalled() -> None:
        hub.close_stalled(loop.time())

    async def cut_slow_peers() -> None:
        if peers.connections is None:
            uploads.cut(loop.time())  # under another server that is all that we can see
        else:
            await peers.sweep()

    async def look_for_hang_ups() -> None:
        hang_ups.look(loop.time())

    tasks = [
        loop.create_task(_every(settings.ping_seconds, ping, telemetry)),
        loop.create_task(_every(min(STALL_CHECK_SECONDS, settings.send_timeout_seconds), close_stalled, telemetry)),
        loop.create_task(_every(peers.sweep_seconds, cut_slow_peers, telemetry)),
        loop.create_task(_every(LOOK_SECONDS, look_for_hang_ups, telemetry)),
        loop.create_task(_every(min(SWEEP_SECONDS, ttl_seconds / 4), relay.sweep_idle, telemetry)),
        loop.create_task(_measure_lag(telemetry)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _every(seconds: float, chore: Callable[[], Awaitable[None]], telemetry: Telemetry) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except Exception as error:  # a chore that fails once is tried again; it must not end the others
            telemetry.internal_error(error)


async def _measure_lag(telemetry: Telemetry) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_CHECK_SECONDS
        await asyncio.sleep(LAG_CHECK_SECONDS)
        telemetry.loop_lagged(max(0.0, loop.time() - due))
