"""Where settings come from: flags, the environment, `.env`, files with secrets. Only `main.py` and `cli.py` ask.

Everything else is handed a `Settings`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import SecretStr, ValidationError

from relay.config import PREFIX, SECRETS, Settings
from relay.errors import StartupError

ENV_FILE = ".env"
FILE_SUFFIX = "_FILE"
"""RELAY_X_FILE names a file that holds the value of RELAY_X, for the settings that are secret."""
_NEAR = 0.8
"""How alike an unknown name must be to a real one to be taken for a slip of the pen."""


def env_names() -> dict[str, str]:
    """The environment variable of each field of Settings."""
    return {name: PREFIX + name.upper() for name in Settings.model_fields}


def put_into_environment(settings: Settings) -> None:
    """Put the settings into the environment, for the processes that this one starts."""
    for name, value in settings:
        os.environ[env_names()[name]] = _as_text(value)
    for name in SECRETS:
        os.environ[env_names()[name] + FILE_SUFFIX] = ""  # read already; wins over one in `.env`


def _as_text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(getattr(value, "value", value))


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
    given |= _from_files(given)
    if slips := [_slip(name, near) for name, near in unknown_names() if near]:
        raise StartupError(" ".join(slips))
    try:
        return Settings(_env_file=ENV_FILE, **given)
    except ValidationError as exc:
        raise StartupError(" ".join(_sentence(error) for error in exc.errors())) from None


def _from_files(given: Mapping[str, Any]) -> dict[str, str]:
    """Secrets that are named by RELAY_<NAME>_FILE."""
    environment = {**dotenv_values(ENV_FILE), **os.environ}
    found = {}
    for name in SECRETS:
        variable = env_names()[name]
        path = environment.get(variable + FILE_SUFFIX)
        if not path or name in given:
            continue
        if environment.get(variable):
            raise StartupError(f"{variable} and {variable}{FILE_SUFFIX} are both set. Keep one of them.")
        try:
            found[name] = Path(path).read_text().strip()
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise StartupError(f"{variable}{FILE_SUFFIX}: cannot read the file it names: {why}.") from None
        if not found[name]:
            raise StartupError(f"{variable}{FILE_SUFFIX}: the file it names is empty.")
    return found


def unknown_names() -> list[tuple[str, str | None]]:
    """RELAY_* names that are set but are not settings, each with the setting it resembles, if any."""
    known = {*env_names().values(), *(env_names()[name] + FILE_SUFFIX for name in SECRETS)}
    named = {*os.environ, *dotenv_values(ENV_FILE)}
    return [(name, _nearest(name, known)) for name in sorted(named) if name.startswith(PREFIX) and name not in known]


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)), None)


def _slip(name: str, near: str | None) -> str:
    return f"{name} is not a setting. Did you mean {near}?"


def _sentence(error: Any) -> str:
    field = str(error["loc"][0]) if error["loc"] else ""
    name = field if field in ("RELAY_PORT", "PORT") else env_names().get(field, "RELAY_*_TOKEN")
    rule = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}: {rule[0].lower()}{rule[1:]}. See docs/settings.md for what it takes."
