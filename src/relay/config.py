"""Every setting, once: default, bounds, RELAY_* name and the reason for it.

`docs/settings.md` is generated from this class. Only `main.py` and `cli.py` read the environment, through
`load_settings`; everything else is handed a `Settings`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from dotenv import dotenv_values
from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from relay.errors import StartupError

PREFIX = "RELAY_"
ENV_FILE = ".env"
_NEAR = 0.8
"""How alike an unknown name must be to a real one to be taken for a slip of the pen."""


class UnknownSession(str, Enum):
    """What a WebSocket to a session that does not exist gets."""

    WAIT = "wait"
    REJECT = "reject"


class LogLevel(str, Enum):
    """The least severe event that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(str, Enum):
    """How log lines look; auto is console on a terminal and json elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class Settings(BaseSettings):
    """The relay's settings, each from the environment variable RELAY_<NAME> or a line in `.env`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, populate_by_name=True)

    host: str = Field(
        "127.0.0.1", min_length=1, description="Address to listen on. Loopback: nobody else can reach it."
    )
    port: int = Field(
        8000,
        ge=0,
        le=65535,
        validation_alias=AliasChoices("RELAY_PORT", "PORT"),
        description="Port to listen on; 0 takes any free one. `PORT` works too: hosting platforms set it.",
    )
    store_url: str = Field(
        "memory://",
        min_length=1,
        description="Where sessions live: `memory://` in this process, until it ends; `sqlite:///relay.db` (or just "
        "`relay.db`) in a file; `redis://host:6379/0` for several processes. See docs/stores.md.",
    )
    redis_wait_replicas: int = Field(
        0,
        ge=0,
        le=100,
        description="With Redis: so many replicas must have a message before it is acknowledged; else 503.",
    )
    history: bool = Field(
        True, description="Keep messages for `GET /messages`. Off: it answers with none, all else works."
    )
    history_max_messages: int = Field(
        10_000,
        ge=1_000,
        le=10_000_000,
        description="Messages kept per session; the oldest go first, pending prompts never. "
        "At least one full page of history.",
    )
    history_max_bytes: int = Field(
        64 * 1024**2,
        ge=1024**2,
        description="Bytes of messages kept per session, likewise.",
    )
    ping_seconds: float = Field(
        30,
        allow_inf_nan=False,
        gt=0,
        le=3600,
        description="Time between pings to WebSocket clients. Below the 60 s idle cut of common proxies.",
    )
    session_ttl_seconds: float = Field(
        86_400,
        allow_inf_nan=False,
        ge=0,
        description="A session is collected after so long without activity, if it has no listener and "
        "no pending prompt. 0: never.",
    )
    ws_unknown_session: UnknownSession = Field(
        UnknownSession.WAIT,
        description="A WebSocket to a session that does not exist yet: `wait` for it (the specification's "
        "flows connect first) or `reject` with 404 (its table).",
    )
    send_timeout_seconds: float = Field(
        10,
        allow_inf_nan=False,
        gt=0,
        le=300,
        description="A WebSocket whose single write stalls for so long is closed with 4008: nobody reads there.",
    )
    max_body_bytes: int = Field(
        1024**2,
        ge=1024**2,
        le=64 * 1024**2,
        description="Largest request body. A 128 KiB text may be six times as long in JSON escapes.",
    )
    max_pending_per_session: int = Field(
        1_000, ge=1, description="Prompts without an answer in one session; over it 429."
    )
    max_sessions: int = Field(10_000, ge=1, description="Sessions in all; over it 503 for a new one.")
    max_subscribers_per_session: int = Field(
        1_000, ge=1, description="WebSocket clients of one session; over it 503 at the handshake."
    )
    max_subscribers: int = Field(10_000, ge=1, description="WebSocket clients in all; over it 503 at the handshake.")
    max_waiting_polls: int = Field(5_000, ge=1, description="Polls that wait at one time; over it 429.")
    store_max_bytes: int = Field(
        512 * 1024**2,
        ge=1024**2,
        description="Memory the memory store may take for messages and ids; over it 503 for new messages.",
    )
    log_level: LogLevel = Field(
        LogLevel.INFO, description="`debug`, `info`, `warning` or `error`. Message texts are never logged."
    )
    log_format: LogFormat = Field(
        LogFormat.AUTO,
        description="`json` lines, `console` for people, `auto`: console on a terminal, json elsewhere.",
    )


def env_names() -> dict[str, str]:
    """The environment variable of each field of Settings."""
    return {name: PREFIX + name.upper() for name in Settings.model_fields}


def as_environment(settings: Settings) -> dict[str, str]:
    """The same settings as environment variables, for a process that is to have them too."""
    return {env_names()[name]: str(getattr(value, "value", value)) for name, value in settings}


def requested_workers(argv: Sequence[str]) -> int:
    """How many processes an ASGI server's command line, or WEB_CONCURRENCY, asks for."""
    wanted = os.environ.get("WEB_CONCURRENCY", "1")
    for flag, value in zip(argv, [*argv[1:], ""], strict=True):
        if flag in ("--workers", "-w"):
            wanted = value
        elif flag.startswith("--workers="):
            wanted = flag.partition("=")[2]
    return int(wanted) if wanted.isdigit() else 1


def load_settings(**flags: Any) -> Settings:
    """Settings from flags, then the environment, then `.env`, then defaults.

    A flag of None was not given. Raises StartupError with one sentence per wrong value, or for a name that
    is almost a setting: a mistyped limit must not be ignored in silence.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if slips := [_slip(name, near) for name, near in unknown_names() if near]:
        raise StartupError(" ".join(slips))
    try:
        return Settings(_env_file=ENV_FILE, **given)
    except ValidationError as exc:
        raise StartupError(" ".join(_sentence(error) for error in exc.errors())) from None


def unknown_names() -> list[tuple[str, str | None]]:
    """RELAY_* names that are set but are not settings, each with the setting it resembles, if any."""
    known = set(env_names().values())
    named = {*os.environ, *dotenv_values(ENV_FILE)}
    return [(name, _nearest(name, known)) for name in sorted(named) if name.startswith(PREFIX) and name not in known]


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)), None)


def _slip(name: str, near: str | None) -> str:
    return f"{name} is not a setting. Did you mean {near}?"


def _sentence(error: Any) -> str:
    field = str(error["loc"][0])
    name = field if field in ("RELAY_PORT", "PORT") else env_names().get(field, field)
    rule = str(error["msg"])
    return f"{name}: {rule[0].lower()}{rule[1:]}. See docs/settings.md for what it takes."
