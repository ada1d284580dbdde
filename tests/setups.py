"""The relays that the protocol suite is run against: each door, each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.serving import running


@contextmanager
def on_memory(_: Path) -> Iterator[str]:
    """As the README starts it."""
    with running("serve") as server:
        yield server.url


@contextmanager
def under_uvicorn(_: Path) -> Iterator[str]:
    """As the specification starts it."""
    with running("uvicorn") as server:
        yield server.url


@contextmanager
def on_sqlite(folder: Path) -> Iterator[str]:
    """In a file."""
    with running("serve", store_url=f"sqlite:///{folder}/relay.db") as server:
        yield server.url


SETUPS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "memory": on_memory,
    "uvicorn": under_uvicorn,
    "sqlite": on_sqlite,
}
