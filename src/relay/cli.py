"""The `relay` command: arguments only; what it does is elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from relay import __version__
from relay.config import LogFormat, LogLevel
from relay.environment import as_environment, load_settings
from relay.errors import StartupError

STARTUP_FAILURE = 3

app = typer.Typer(
    name="relay",
    help="Relay: talk from a phone or a web page to an AI agent on your own laptop.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

SERVE_EPILOG = """
[bold]Examples[/bold]

relay serve                                 # http://127.0.0.1:8000, in memory

relay serve --store relay.db                # survives a restart

relay serve --store redis://127.0.0.1:6379/0 --workers 4

relay serve --port 0                        # any free port; the banner says which

relay serve --log-format json               # one JSON line per event

RELAY_PING_SECONDS=15 relay serve           # any setting of docs/settings.md

[bold]Exit codes[/bold]   0 stopped in order   2 wrong usage   3 could not start
"""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"relay {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog=SERVE_EPILOG)
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.", show_default="8000")] = None,
    store: Annotated[
        str | None,
        typer.Option(help="memory://, a SQLite file such as relay.db, or redis://…", show_default="memory://"),
    ] = None,
    history: Annotated[
        bool | None, typer.Option("--history/--no-history", help="Keep messages for GET /messages.", show_default="on")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes on this address; more than one needs Redis.")] = 1,
    log_level: Annotated[LogLevel | None, typer.Option(help="Least severe event to log.", show_default="info")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How log lines look.", show_default="auto")] = None,
) -> None:
    """Start the relay.

    Every setting is also an environment variable RELAY_<NAME> or a line in .env; a flag wins.
    """
    from relay.server import run  # loads the web stack: not needed for --help or --version

    try:
        settings = load_settings(
            host=host, port=port, store_url=store, history=history, log_level=log_level, log_format=log_format
        )
        if workers == 1:
            run.serve(settings)
        else:
            os.environ.update(as_environment(settings))  # the workers read it from there
            run.serve_workers(settings, workers, "relay.cli:worker_app")
    except StartupError as exc:
        typer.echo(f"relay: {exc}", err=True)
        sys.exit(STARTUP_FAILURE)


def worker_app() -> object:
    """The application of one of several workers."""
    from relay.server.app import create_app
    from relay.server.telemetry import bridge_uvicorn

    app = create_app(load_settings())
    bridge_uvicorn(app.state.telemetry)
    return app


def main() -> None:
    """The entry point of the `relay` command."""
    app()
