"""The `relay` command: arguments only; what it does is elsewhere."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
import time
from typing import Annotated

import typer

from relay import __version__
from relay.config import LogFormat, LogLevel, Settings, listed
from relay.environment import load_settings, put_into_environment
from relay.errors import InvalidToken, StartupError
from relay.server.auth import Role, make_token, read_token

STARTUP_FAILURE = 3
REFUSED = 4

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

relay serve --host 0.0.0.0 --generate-token # for others: prints tokens

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
    generate_token: Annotated[
        bool, typer.Option("--generate-token", help="Make tokens for this run, print them and how to use them.")
    ] = False,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve everyone without a token.", show_default="off")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Least severe event to log.", show_default="info")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How log lines look.", show_default="auto")] = None,
) -> None:
    """Start the relay.

    Every setting is also an environment variable RELAY_<NAME> or a line in .env; a flag wins.
    """
    from relay.server import run  # loads the web stack: not needed for --help or --version

    try:
        settings = load_settings(
            host=host,
            port=port,
            store_url=store,
            history=history,
            insecure=insecure,
            log_level=log_level,
            log_format=log_format,
        )
        if generate_token:
            settings = _with_tokens(settings)
        if workers == 1:
            run.serve(settings)
        else:
            put_into_environment(settings)  # the workers read it from there
            run.serve_workers(settings, workers, "relay.cli:worker_app")
    except StartupError as exc:
        typer.echo(f"relay: {exc}", err=True)
        sys.exit(STARTUP_FAILURE)


def _with_tokens(settings: Settings) -> Settings:
    """The same with a new token for each role that has none, and a secret."""
    missing = [role for role, tokens in settings.role_tokens.items() if not listed(tokens)]
    made = {f"{role}_token": f"{role}-{secrets.token_urlsafe(24)}" for role in missing}
    if not listed(settings.secret):
        made["secret"] = secrets.token_urlsafe(32)
    if not made:
        typer.echo("All tokens are set already: none was made.")
        return settings
    settings = settings.with_secrets(made)
    typer.echo("Tokens for this run. Put these lines into .env, and they stay the same the next time:\n")
    for name, value in made.items():
        typer.echo(f"  RELAY_{name.upper()}={value}")
    admin = made.get("admin_token", "<your admin token>")
    relay = "relay" if shutil.which("relay") else sys.argv[0]  # as it can be called from here
    typer.echo(
        "\nA client posts prompts and listens, an agent fetches and answers, an admin may do everything:\n\n"
        f"  curl -H 'Authorization: Bearer {admin}' http://127.0.0.1:{settings.port or '<port>'}/sessions\n\n"
        "A token for one session and one day, once RELAY_SECRET is in .env:\n\n"
        f"  {relay} token create --role client --session abc --expires 24h\n"
    )
    sys.stdout.flush()
    return settings


token_app = typer.Typer(name="token", help="Session tokens, signed with RELAY_SECRET.", no_args_is_help=True)
app.add_typer(token_app)

EXAMPLES = """
[bold]Examples[/bold]

relay token create --role client --session abc               # one session, one day

relay token create --role agent --session 'team-*' --expires 30d

relay token show < token.txt                                 # what it says, and whether it is good
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@token_app.command(name="create", epilog=EXAMPLES)
def create_token(
    session: Annotated[str, typer.Option(help="Session it is good for; with * at the end, all that begin so.")],
    role: Annotated[Role, typer.Option(help="What its bearer may do.", show_default="client")] = Role.CLIENT,
    expires: Annotated[str, typer.Option(help="How long it is good: 90s, 15m, 24h, 30d.", show_default="24h")] = "24h",
) -> None:
    """Make a session token and print it."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", expires)
    if match is None:
        raise typer.BadParameter("write a number and s, m, h or d, such as 24h", param_hint="--expires")
    if not session:
        raise typer.BadParameter("name a session, or * for all", param_hint="--session")
    seconds = int(match[1]) * _UNITS[match[2]]
    typer.echo(make_token(_secrets()[0], role, session, int(time.time()) + seconds))


@token_app.command(name="show", epilog=EXAMPLES)
def show_token(
    token: Annotated[
        str | None, typer.Argument(help="The token; better on standard input: other users see arguments.")
    ] = None,
) -> None:
    """Say what a session token is good for. Exit code 4 if the relay would refuse it."""
    given = token if token is not None else sys.stdin.read()
    try:
        claims = read_token(given.strip(), _secrets())
    except InvalidToken as exc:
        typer.echo(
            f"relay: this relay would refuse it: {exc.details or 'it was not signed with RELAY_SECRET'}.", err=True
        )
        sys.exit(REFUSED)
    left = int(claims["exp"] - time.time())
    expires = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claims["exp"]))
    typer.echo(f"role      {claims['role']}\nsession   {claims['sid']}\nexpires   {expires} (in {left} s)")


def _secrets() -> list[str]:
    try:
        found = listed(load_settings().secret)
    except StartupError as exc:
        typer.echo(f"relay: {exc}", err=True)
        sys.exit(STARTUP_FAILURE)
    if not found:
        typer.echo(
            "relay: RELAY_SECRET is not set. Put the relay's into .env or the environment; if it has none, make one "
            "for both: openssl rand -hex 32",
            err=True,
        )
        sys.exit(STARTUP_FAILURE)
    return found


def worker_app() -> object:
    """The application of one of several workers."""
    from relay.server.logs import bridge_uvicorn
    from relay.server.run import create_lasting_app

    app = create_lasting_app(load_settings())
    bridge_uvicorn(app.state.telemetry.lines)
    return app


def main() -> None:
    """The entry point of the `relay` command."""
    app()
