"""`relay serve`: uvicorn with our protocol classes, an address that is checked first, a banner, and a clean end."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from rich.console import Console
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from relay import __version__
from relay.config import Settings, listed
from relay.environment import unknown_names
from relay.errors import StartupError
from relay.server.app import create_app
from relay.server.fastdoor import FastDoor
from relay.server.logs import bridge_uvicorn, uses_console
from relay.server.origin import is_local_peer
from relay.server.peers import raise_open_files
from relay.server.telemetry import Telemetry
from relay.server.ws_protocol import WebSocketProtocol
from relay.store import is_shared, make_store

BACKLOG = 2048
STOP_SECONDS = 6
"""After that, whoever still holds on is let go: the whole stop takes less than 10 s."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients and proxies keep an idle connection (httpx 5 s, nginx 60 s): they close it, not we, and no
request is lost on one that was just closed."""


_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Stands for every address of this machine, and is none that one can open; this one is."""

INSECURE = "NONE: whoever can reach this address can use it"


def serve(settings: Settings) -> None:
    """Run the relay until it is told to stop. Raises StartupError if it cannot begin."""
    refuse_open_address(settings)
    raise_open_files()
    app = create_lasting_app(settings)
    telemetry: Telemetry = app.state.telemetry
    listener = _listen(settings)
    bridge_uvicorn(telemetry.lines)
    for name, _ in unknown_names():
        telemetry.log("unknown_setting", name=name)
    server = _Server(_uvicorn_config(app, settings), settings, listener, telemetry)
    # uvicorn raises the signal that stopped it once more when it is done; the process shall end with 0 instead.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listener])  # ends the process with 3 if the application cannot start
        telemetry.log("server_stopped")
    finally:
        telemetry.flush()


YOUNG_OBJECTS = 20_000
"""The collector looks when there are so many more than at the last time: for a millisecond or two."""


def create_lasting_app(settings: Settings) -> FastAPI:
    """The application of a process that does nothing else."""
    app = create_app(settings)
    # All that was made up to now stays: to look through it for garbage, now and then, would stop everything for 20 ms.
    gc.freeze()
    # And what waits is no garbage: with Python's own threshold a thousand polls would be looked through a dozen times.
    gc.set_threshold(YOUNG_OBJECTS)
    return app


def serve_workers(settings: Settings, workers: int, app_factory: str) -> None:
    """Run several processes on one address, each with the app that `module:function` makes, until told to stop.

    Raises StartupError if they cannot begin.
    """
    refuse_several_processes(settings, workers)
    refuse_open_address(settings)
    raise_open_files()
    make_store(settings)  # only to see that there is one: a worker that cannot begin would be started for ever
    telemetry = Telemetry(settings)
    listener = _listen(settings)
    bridge_uvicorn(telemetry.lines)
    _announce(settings, listener, telemetry, workers)
    telemetry.flush()
    supervisor = Multiprocess(_uvicorn_config(app_factory, settings, factory=True, workers=workers), sockets=[listener])
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise StartupError("A worker could not start; the line above says why.")
    telemetry.log("server_stopped")
    telemetry.flush()


def refuse_several_processes(settings: Settings, processes: int) -> None:
    """Raises StartupError if so many processes cannot share the store."""
    if processes > 1 and not is_shared(settings.store_url):
        shown = without_password(settings.store_url)
        raise StartupError(
            f"{processes} workers cannot share {shown}: each process would have sessions of its own, or "
            "find the file taken. Use one worker, or a store for several: --store redis://127.0.0.1:6379/0"
        )


def refuse_open_address(settings: Settings) -> None:
    """Raises StartupError if others could reach the relay and it would not ask who they are."""
    if settings.token_mode or settings.insecure or _is_loopback(settings.host):
        return
    raise StartupError(
        f"Others can reach {settings.host}, and no token is set: posting a prompt is close to running code on the "
        "laptop behind the agent. Add --generate-token, or set RELAY_CLIENT_TOKEN, RELAY_AGENT_TOKEN and "
        "RELAY_ADMIN_TOKEN. If everyone shall have access: --insecure."
    )


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # not an address: `_listen` says so
    return all(is_local_peer(str(address[0])) for *_, address in found)


def _auth_state(settings: Settings) -> str:
    if settings.token_mode:
        roles = [role for role, tokens in settings.role_tokens.items() if listed(tokens)]
        return "tokens: " + ", ".join([*roles, *(["signed session tokens"] if listed(settings.secret) else [])])
    return INSECURE if settings.insecure else "open to this machine only; for others: --generate-token"


def _uvicorn_config(app: FastAPI | str, settings: Settings, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        **more,
        http=FastDoor,
        ws=WebSocketProtocol,
        ws_max_size=settings.max_frame_bytes,  # of what comes out of the decompressor, too
        ws_per_message_deflate=settings.ws_compression,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the guard looks at them itself, and only for limits
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise StartupError(f"'{host}' is not an address of this machine. Try --host 127.0.0.1.") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise StartupError(_why_not(exc, host, port)) from None
    return listener


def _why_not(exc: OSError, host: str, port: int) -> str:
    if isinstance(exc, PermissionError):
        return f"Port {port} needs special rights. Choose one from 1024 up, such as --port 8000."
    if exc.strerror == "Address already in use" or "in use" in str(exc):
        return (
            f"Port {port} on {host} is taken. Stop the program that uses it, or choose another: "
            f"relay serve --port {port + 1 if port < 65535 else 8000}"
        )
    return f"Cannot listen on {host}, port {port}: {exc.strerror}. Try --host 127.0.0.1."


class _Server(uvicorn.Server):
    """Says so when it accepts connections."""

    def __init__(
        self, config: uvicorn.Config, settings: Settings, listener: socket.socket, telemetry: Telemetry
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._listener = listener
        self._telemetry = telemetry

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _announce(self._settings, self._listener, self._telemetry)


def _announce(settings: Settings, listener: socket.socket, telemetry: Telemetry, workers: int = 1) -> None:
    """Say where it is and in what state: to a person, or to a log."""
    host, port = listener.getsockname()[:2]
    url = _url(host, port)
    if uses_console(settings):
        _print_banner(host, port, settings)
        return
    telemetry.log(
        "server_started",
        url=url,
        docs=f"{url}/docs",
        store=without_password(settings.store_url),
        auth="tokens" if settings.token_mode else "insecure" if settings.insecure else "loopback",
        workers=workers,
        version=__version__,
    )


def without_password(url: str) -> str:
    """A store's URL as it may be shown: where it is, but neither login nor options."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    if not parts.netloc:
        return url
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{parts.scheme}://…"  # perhaps of a password that should have been escaped
    _, login, hosts = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{'…@' if login else ''}{hosts}{parts.path}"


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _print_banner(host: str, port: int, settings: Settings) -> None:
    loopback = _EVERY_ADDRESS.get(host)
    url = _url(loopback or host, port)
    console = Console(file=sys.stderr, highlight=False)
    console.print(f"\n  [bold]Relay {__version__}[/bold]  [bold green]{url}[/bold green]\n")
    for name, value in {
        **({"others": _url("<this machine>", port)} if loopback else {}),
        "docs": f"{url}/docs" + (", with a token" if settings.token_mode else ""),
        "listen": f"{url.replace('http', 'ws', 1)}/ws/<session_id>",
        "store": without_password(settings.store_url),
        "auth": _auth_state(settings),
    }.items():
        console.print(f"  {name:<8}{value}")
    console.print("\n  Press Ctrl+C to stop.\n", style="dim")
