"""Where a request comes from: the peer, the proxies in between, the web page. Rules only; nothing is kept.

A browser on the same machine is the danger here: a page of any site can send requests to loopback, and by DNS
rebinding under a name of its own. Host and Origin give it away; no page can set or suppress them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache

from relay.config import Settings, listed

FORWARDING_HEADERS = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-client-ip",
        b"cf-connecting-ip",
        b"true-client-ip",
    }
)
"""Any of them means that somebody else stands behind the peer."""

LOCAL_ORIGIN = re.compile(rb"http://(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
"""A developer's own page, in open mode."""

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_IN_PROCESS = ("", "testclient")
"""Peers that are no address: a unix socket, an application that calls us directly."""
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


@lru_cache(1024)
def is_local_peer(peer: str | None) -> bool:
    """Whether the peer is this machine itself."""
    if peer is None or peer in _IN_PROCESS:
        return True
    address = _parsed(peer)
    return address is not None and address.is_loopback


def is_local_name(host: bytes | None) -> bool:
    """Whether the Host is an IP literal, `localhost` or a single label: no name that a stranger's DNS could answer."""
    match = _HOST.fullmatch(host or b"")
    if match is None:
        return False
    name = match[1].decode()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_same_origin(origin: bytes, host: bytes | None) -> bool:
    """Whether a page of this origin was served under this Host."""
    scheme, separator, authority = origin.lower().partition(b"://")
    default = _DEFAULT_PORTS.get(scheme)
    if not separator or default is None or host is None:
        return False
    return authority.removesuffix(default) == host.lower().removesuffix(default)


class Origins:
    """Which web pages may use the relay, and what their browsers are told."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = {origin.encode() for origin in listed(settings.allowed_origins)}
        self._local = not settings.token_mode

    def allowed(self, origin: bytes, host: bytes | None) -> bool:
        """Whether a page of this origin may use the relay. `null`, that of a sandboxed page, never."""
        return (
            origin in self._allowed
            or is_same_origin(origin, host)
            or (self._local and LOCAL_ORIGIN.fullmatch(origin) is not None)
        )


class Proxies:
    """Whose X-Forwarded-For is believed."""

    def __init__(self, settings: Settings) -> None:
        self._networks = [ipaddress.ip_network(network) for network in listed(settings.trusted_proxies)]

    def address(self, peer: str | None, headers: Mapping[bytes, bytes]) -> str:
        """The caller's address as limits count it: IPv6 by its network, for one caller has a whole one."""
        believed = peer or ""
        if believed and not self._trusts(believed):
            return _network(believed)
        # Behind a unix socket, as on loopback, there is a proxy of this machine.
        for hop in reversed(headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")):
            if not hop.strip():
                break
            believed = hop.strip()
            if not self._trusts(believed):
                break
        return _network(believed)

    def _trusts(self, hop: str) -> bool:
        address = _parsed(hop)
        return address is not None and any(address in network for network in self._networks)


def _network(address: str) -> str:
    parsed = _parsed(address)
    if parsed is None:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, without its zone; one of IPv4 as such, though a socket for both shows it as ::ffff:127.0.0.1."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
