"""The relays that the protocol suite is run against: each door, each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.serving import running
from tests.store.redis_server import RedisServer, cluster, cluster_url


@contextmanager
def on_memory(_: Path) -> Iterator[str]:
    """As the README starts it."""
    with running("serve") as server:
        yield server.url


@contextmanager
def on_sqlite(folder: Path) -> Iterator[str]:
    """In a file, and as the specification starts it."""
    with running("uvicorn", store_url=f"sqlite:///{folder}/relay.db") as server:
        yield server.url


@contextmanager
def on_redis(folder: Path) -> Iterator[str]:
    """On a Redis of its own."""
    redis = RedisServer(folder)
    try:
        with running("serve", store_url=redis.url) as server:
            yield server.url
    finally:
        redis.stop()


@contextmanager
def on_cluster(folder: Path) -> Iterator[str]:
    """On a Redis Cluster of three masters, and as the specification starts it."""
    with cluster(folder) as nodes, running("uvicorn", store_url=cluster_url(nodes)) as server:
        yield server.url


SETUPS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "memory": on_memory,
    "sqlite": on_sqlite,
    "redis": on_redis,
    "cluster": on_cluster,
}
