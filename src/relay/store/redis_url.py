"""What RELAY_STORE_URL says about a Redis: which servers, how to reach them, and with whose name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from relay.errors import StartupError

REDIS_PORT = 6379
SENTINEL_PORT = 26379

FORMS = (
    "redis://host:6379/0, rediss:// for TLS, redis+sentinel://host1:26379,host2:26379/mymaster or "
    "redis+cluster://host1:7000,host2:7001"
)

_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


class Topology(str, Enum):
    """How several servers, if there are any, make up one Redis."""

    SINGLE = "redis"
    SENTINEL = "redis+sentinel"
    CLUSTER = "redis+cluster"


class RedisAddress(msgspec.Struct, frozen=True):
    """Where a Redis is. `options` and `sentinel_options` are arguments of redis-py's connections."""

    topology: Topology
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    service: str
    db: int
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For sentences: the servers, without any secret."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse_redis_url(url: str) -> RedisAddress:
    """The address that `url` means. Raises StartupError with one sentence, which never repeats a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong("brackets are for IPv6 addresses; in a password write %5B and %5D") from None
    tls = parts.scheme.startswith("rediss")
    try:
        topology = Topology(parts.scheme.replace("rediss", "redis", 1))
    except ValueError:
        raise _wrong(f"there is no '{parts.scheme}:'") from None
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = ""
    if topology is Topology.SENTINEL:
        if not path:
            raise _wrong("the name of the master is missing behind the sentinels")
        service = path.pop(0)
    options = _login(parts)
    sentinel_options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if tls and name in _TLS_OPTIONS:
            options[name] = value.lower() in ("1", "true", "yes") if name == "ssl_check_hostname" else value
        elif topology is Topology.SENTINEL and name in _SENTINEL_OPTIONS:
            sentinel_options[_SENTINEL_OPTIONS[name]] = value
        else:
            raise _wrong("it has an option that does not belong there")  # which may be half of a password
    default_port = SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT
    hosts = tuple(_host(each, default_port) for each in parts.netloc.rpartition("@")[2].split(","))
    if topology is Topology.SINGLE and len(hosts) > 1:
        raise _wrong("several hosts need +sentinel or +cluster")
    return RedisAddress(topology, hosts, tls, service, _database(path, topology), options, sentinel_options)


def _login(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in given.items() if value}


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        one = urlsplit(f"//{text}")
        host, port = one.hostname, one.port
    except ValueError:
        raise _wrong("a port must be a number up to 65535") from None
    if not host:
        raise _wrong("a host is missing")
    return host, default_port if port is None else port


def _database(path: list[str], topology: Topology) -> int:
    if not path:
        return 0
    if len(path) > 1 or not path[0].isascii() or not path[0].isdigit():
        raise _wrong("the database must be a number")
    if topology is Topology.CLUSTER and path[0] != "0":
        raise _wrong("a cluster has no numbered databases")
    return int(path[0])


def _wrong(why: str) -> StartupError:
    return StartupError(f"RELAY_STORE_URL: {why}. It takes {FORMS}.")
