"""The relays that the protocol suite is run against: each door, each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.protocol.talk import Address
from tests.serving import running
from tests.store.redis_server import RedisServer, cluster, cluster_url

ADMIN_TOKEN = "admin-of-the-tests-0123456789"
TOKENS = {
    "client_token": "client-of-the-tests-0123456789",
    "agent_token": "agent-of-the-tests-0123456789",
    "admin_token": ADMIN_TOKEN,
    "rate_limit": 0,  # the tests are faster than any person
}


@contextmanager
def on_memory(_: Path) -> Iterator[Address]:
    """As the README starts it."""
    with running("serve") as server:
        yield Address(server.url)


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Address]:
    """In a file, as the specification starts it, and with tokens."""
    with running("uvicorn", store_url=f"sqlite:///{folder}/relay.db", **TOKENS) as server:
        yield Address(server.url, ADMIN_TOKEN)


@contextmanager
def on_redis(folder: Path) -> Iterator[Address]:
    """On a Redis of its own, with tokens."""
    redis = RedisServer(folder)
    try:
        with running("serve", store_url=redis.url, **TOKENS) as server:
            yield Address(server.url, ADMIN_TOKEN)
    finally:
        redis.stop()


@contextmanager
def on_cluster(folder: Path) -> Iterator[Address]:
    """On a Redis Cluster of three masters, and as the specification starts it."""
    with cluster(folder) as nodes, running("uvicorn", store_url=cluster_url(nodes)) as server:
        yield Address(server.url)


SETUPS: dict[str, Callable[[Path], AbstractContextManager[Address]]] = {
    "memory": on_memory,
    "sqlite": on_sqlite,
    "redis": on_redis,
    "cluster": on_cluster,
}
