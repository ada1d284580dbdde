"""`make_store`: the only place that knows which URL means which class."""

from __future__ import annotations

from relay.config import Settings
from relay.errors import StartupError
from relay.store.base import Store, StoreLimits
from relay.store.memory import MemoryStore


def make_store(settings: Settings) -> Store:
    """The store that RELAY_STORE_URL names, not yet opened. Raises StartupError if there is none."""
    scheme = settings.store_url.partition(":")[0]
    limits = StoreLimits(
        history=settings.history,
        history_max_messages=settings.history_max_messages,
        history_max_bytes=settings.history_max_bytes,
        max_pending_per_session=settings.max_pending_per_session,
        max_sessions=settings.max_sessions,
        store_max_bytes=settings.store_max_bytes,
    )
    if scheme == "memory":
        return MemoryStore(limits)
    raise StartupError(f"RELAY_STORE_URL: this version has no store for '{scheme}:'. Use memory:// or leave it unset.")
