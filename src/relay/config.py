"""Every setting, once: default, bounds, RELAY_* name and the reason for it.

`docs/settings.md` is generated from this class; `environment.py` fills it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from enum import Enum

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "RELAY_"
MIN_TOKEN_CHARS = 24
MIN_SECRET_BYTES = 32


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
    client_token: SecretStr = Field(
        SecretStr(""),
        description="Tokens of clients, with commas between them: give the new one beside the old while you rotate. "
        f"Each has at least {MIN_TOKEN_CHARS} characters. Any token turns token mode on: see docs/security.md.",
    )
    agent_token: SecretStr = Field(SecretStr(""), description="Tokens of agents, likewise.")
    admin_token: SecretStr = Field(SecretStr(""), description="Tokens that may do everything, likewise.")
    secret: SecretStr = Field(
        SecretStr(""),
        description=f"Keys of at least {MIN_SECRET_BYTES} bytes that sign session tokens (`relay token create`); the "
        "first signs, all are accepted.",
    )
    insecure: bool = Field(
        False, description="Without tokens, serve everyone who can reach the address. Warned of at every start."
    )
    allowed_origins: str = Field(
        "",
        description="Web pages of other sites that may use the relay, with commas between them: "
        "`https://chat.example.org`.",
    )
    trusted_proxies: str = Field(
        "127.0.0.1,::1",
        description="Addresses or networks of proxies whose `X-Forwarded-For` tells who the caller is, for limits per "
        "address. It never makes a caller more trusted.",
    )
    rate_limit: float = Field(
        100,
        allow_inf_nan=False,
        ge=0,
        description="Requests per second of one token, or of one address without a token, in token mode; twice as many "
        "at once. Over it 429. 0: no limit.",
    )
    failed_logins_per_minute: int = Field(
        10,
        ge=0,
        description="Refused tokens of one address before it gets 429 instead of 401; valid tokens always pass. "
        "0: no limit.",
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
    max_metadata_bytes: int = Field(
        65_536, ge=1_024, le=1024**2, description="Largest metadata of a message, as compact JSON; over it 400."
    )
    max_metadata_depth: int = Field(
        32, ge=1, le=256, description="How deep objects and arrays may be nested in metadata; over it 400."
    )
    max_header_bytes: int = Field(
        65_536, ge=8_192, le=1024**2, description="Longest head of a request; over it 431. With `relay serve`."
    )
    max_header_fields: int = Field(
        100, ge=20, le=1_000, description="Most header fields of a request; over it 431. With `relay serve`."
    )
    header_timeout_seconds: float = Field(
        10,
        allow_inf_nan=False,
        gt=0,
        le=300,
        description="How long the head of a request may take to arrive, from the first byte or from the connection; "
        "then the connection is closed. With `relay serve`.",
    )
    body_timeout_seconds: float = Field(
        20,
        allow_inf_nan=False,
        gt=0,
        le=300,
        description="How long the body of a request may take to arrive, behind its head; then 408.",
    )
    max_connections: int = Field(
        20_000,
        ge=10,
        description="Connections of one process; over it 503. With `relay serve`. Never more than the process may open "
        "files, less a reserve.",
    )
    max_frame_bytes: int = Field(
        65_536, ge=125, le=1024**2, description="Largest WebSocket message of a client; over it close code 1009."
    )
    max_frames_per_second: float = Field(
        20,
        allow_inf_nan=False,
        ge=1,
        description="WebSocket messages of one client, protocol pings included; five seconds' worth at once. Over it "
        "close code 1008.",
    )
    ws_compression: bool = Field(
        False,
        description="Agree to permessage-deflate if a client offers it, as browsers do: 40 KB more for each socket.",
    )
    max_pending_per_session: int = Field(
        1_000, ge=1, description="Prompts without an answer in one session; over it 429."
    )
    max_sessions: int = Field(10_000, ge=1, description="Sessions in all; over it 503 for a new one.")
    max_subscribers_per_session: int = Field(
        1_000, ge=1, description="WebSocket clients of one session; over it 503 at the handshake."
    )
    max_subscribers: int = Field(
        10_000, ge=1, description="WebSocket clients of this process; over it 503 at the handshake."
    )
    max_waiting_polls: int = Field(
        5_000, ge=1, description="Polls that wait at one time, in this process; over it 429."
    )
    max_waiting_polls_per_session: int = Field(
        64, ge=1, description="Polls that wait for one session at one time; over it 429."
    )
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

    @field_validator("client_token", "agent_token", "admin_token")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        if any(len(token) < MIN_TOKEN_CHARS or not token.isascii() or " " in token for token in listed(value)):
            raise ValueError(
                f"every token needs at least {MIN_TOKEN_CHARS} characters of ASCII without blanks; "
                "`relay serve --generate-token` makes good ones"
            )
        return value

    @field_validator("secret")
    @classmethod
    def _strong_enough(cls, value: SecretStr) -> SecretStr:
        if any(len(key.encode()) < MIN_SECRET_BYTES for key in listed(value)):
            raise ValueError(
                f"every key needs at least {MIN_SECRET_BYTES} bytes, and a comma begins the next key; "
                "`openssl rand -hex 32` makes one"
            )
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        for origin in listed(value):
            if not re.fullmatch(r"https?://[a-z0-9.\-\[\]:]+", origin):
                raise ValueError(
                    "an origin is scheme and host in lower case and nothing behind: https://chat.example.org"
                )
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for network in listed(value):
            ipaddress.ip_network(network)  # its ValueError says what is wrong
        return value

    @model_validator(mode="after")
    def _one_role_per_token(self) -> Settings:
        tokens = [token for value in self.role_tokens.values() for token in listed(value)]
        if len(tokens) != len(set(tokens)):
            raise ValueError(
                "the same token is given for two roles, or twice. Give each role its own; a token that may do "
                "everything is RELAY_ADMIN_TOKEN"
            )
        return self

    def with_secrets(self, values: Mapping[str, str]) -> Settings:
        """The same with other secrets."""
        return self.model_copy(update={name: SecretStr(value) for name, value in values.items()})

    @property
    def role_tokens(self) -> dict[str, SecretStr]:
        """The tokens of each role."""
        return {"client": self.client_token, "agent": self.agent_token, "admin": self.admin_token}

    @property
    def token_mode(self) -> bool:
        """Whether callers must say who they are."""
        return any(listed(value) for value in (*self.role_tokens.values(), self.secret))


SECRETS = ("client_token", "agent_token", "admin_token", "secret", "store_url")
"""Settings that may also be given as the name of a file."""


def listed(value: SecretStr | str) -> list[str]:
    """The items of a setting that holds several, with commas between them."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return [item.strip() for item in text.split(",") if item.strip()]
