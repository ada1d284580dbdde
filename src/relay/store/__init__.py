"""`make_store`: the only place that knows which URL means which class. Drivers are loaded only when they are needed."""

from __future__ import annotations

from pathlib import Path

from relay.config import Settings
from relay.errors import StartupError
from relay.store.base import Store, StoreLimits
from relay.store.memory import MemoryStore

_SCHEMES = ("memory", "sqlite", "redis", "rediss")


def make_store(settings: Settings) -> Store:
    """The store that RELAY_STORE_URL names, not yet opened. Raises StartupError if there is none."""
    url = settings.store_url
    limits = StoreLimits(
        history=settings.history,
        history_max_messages=settings.history_max_messages,
        history_max_bytes=settings.history_max_bytes,
        max_pending_per_session=settings.max_pending_per_session,
        max_sessions=settings.max_sessions,
        store_max_bytes=settings.store_max_bytes,
    )
    scheme, separator, rest = url.partition("://")
    if not separator and url.rstrip(":/") in _SCHEMES:
        raise StartupError(
            f"RELAY_STORE_URL: '{url}' would be a file. Write {url.rstrip(':/')}://, or ./{url} for the file."
        )
    try:
        if not separator or scheme == "sqlite":
            from relay.store.sqlite import SqliteStore

            return SqliteStore(_path(rest.removeprefix("/") if separator else url), limits)
        if scheme.startswith("redis"):
            from relay.store.redis import RedisStore

            return RedisStore(url, limits, wait_replicas=settings.redis_wait_replicas)
    except ImportError as exc:
        extra = "redis" if scheme.startswith("redis") else "sqlite"
        raise StartupError(f"This store needs {exc.name}: pip install 'relay-server[{extra}]'.") from None
    if scheme == "memory":
        return MemoryStore(limits)
    raise StartupError(
        f"RELAY_STORE_URL: there is no store for '{scheme}:'. Use memory://, sqlite:///relay.db or redis://host:6379/0."
    )


def is_shared(url: str) -> bool:
    """Whether several processes can use this store at one time."""
    return url.startswith("redis")


def _path(path: str) -> Path:
    if not path:
        raise StartupError("RELAY_STORE_URL names no file. For example: sqlite:///relay.db")
    return Path(path).expanduser()
