"""server/origin.py from inside: whose word about addresses is believed, and which pages are our own."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.server.origin import Proxies, is_local_name, is_local_peer, is_same_origin
from tests.factories import some_settings

PROXY = "10.0.0.1"
TRUSTED = "127.0.0.1, ::1, 10.0.0.0/8, fd00::/8"
addresses = st.ip_addresses().map(str)
strangers = addresses.filter(
    lambda address: (
        not any(
            ipaddress.ip_address(address) in ipaddress.ip_network(network.strip()) for network in TRUSTED.split(",")
        )
        and not address.lower().startswith("::ffff:")
    )
)
whatever = st.text(st.characters(max_codepoint=255, exclude_characters=","), max_size=20) | addresses


def address(peer: str | None, forwarded: str | None = None, trusted: str = TRUSTED) -> str:
    headers = {} if forwarded is None else {b"x-forwarded-for": forwarded.encode("latin-1")}
    return Proxies(some_settings(trusted_proxies=trusted)).address(peer, headers)


@given(strangers, st.lists(whatever, max_size=5))
def test_a_stranger_is_counted_as_itself_whatever_it_says(peer: str, said: list[str]) -> None:
    assert address(peer, ", ".join(said)) == address(peer)


@given(strangers, st.lists(whatever, max_size=5), st.lists(st.sampled_from([PROXY, "10.9.9.9", "fd00::1"]), max_size=3))
def test_behind_proxies_the_first_one_that_is_not_trusted_counts(caller: str, said: list[str], hops: list[str]) -> None:
    """What the caller itself has put in front does not."""
    assert address(PROXY, ", ".join([*said, caller, *hops])) == address(caller)


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("203.0.113.5", None, "203.0.113.5"),
        (PROXY, None, PROXY),
        (PROXY, "", PROXY),
        (PROXY, "203.0.113.5", "203.0.113.5"),
        (PROXY, "203.0.113.5,", PROXY),
        (PROXY, "nonsense", "unknown"),
        (PROXY, "203.0.113.5, nonsense", "unknown"),
        ("::ffff:10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("::ffff:203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("::ffff:127.0.0.1", "203.0.113.5", "203.0.113.5"),
        (PROXY, "::ffff:203.0.113.5", "203.0.113.5"),
        ("2001:db8:1:2::1", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", None, "2001:db8:1:3::/64"),
        ("fe80::1%eth0", None, "fe80::/64"),
        ("fd00::5", "2001:db8::1", "2001:db8::/64"),
        (None, None, "unknown"),
        ("", "203.0.113.5", "203.0.113.5"),
        (None, "198.51.100.1, 203.0.113.5", "203.0.113.5"),
    ],
)
def test_an_address_as_limits_count_it(peer: str | None, forwarded: str | None, counted: str) -> None:
    assert address(peer, forwarded) == counted


def test_nobody_is_trusted_if_nobody_is_named() -> None:
    assert address("127.0.0.1", "203.0.113.5", trusted="") == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (None, True),
        ("", True),
        ("testclient", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost", False),
    ],
)
def test_a_peer_is_local_or_not(peer: str | None, local: bool) -> None:
    assert is_local_peer(peer) is local


@given(addresses)
def test_an_address_literal_is_a_local_name(host: str) -> None:
    literal = f"[{host}]" if ":" in host else host
    assert is_local_name(literal.encode())
    assert is_local_name(f"{literal}:8000".encode())


@given(st.from_regex(r"[a-z0-9-]{1,10}(\.[a-z0-9-]{1,10}){1,3}", fullmatch=True))
def test_a_name_with_dots_that_is_no_address_is_not_local(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        assert not is_local_name(host.encode())


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://relay.example", "relay.example", True),
        ("http://relay.example:80", "relay.example", True),
        ("http://relay.example", "relay.example:80", True),
        ("https://relay.example", "relay.example:443", True),
        ("https://relay.example:443", "relay.example", True),
        ("HTTPS://Relay.Example", "relay.EXAMPLE", True),
        ("http://[::1]:80", "[::1]", True),
        ("http://relay.example:443", "relay.example", False),
        ("https://relay.example:80", "relay.example", False),
        ("https://relay.example:8443", "relay.example", False),
        ("https://relay.example", "relay.example:8443", False),
        ("https://relay.example.", "relay.example", False),
        ("https://evil.example", "relay.example", False),
        ("ftp://relay.example", "relay.example", False),
        ("relay.example", "relay.example", False),
        ("null", "null", False),
        ("http://relay.example", None, False),
    ],
)
def test_a_page_is_our_own_or_not(origin: str, host: str | None, same: bool) -> None:
    assert is_same_origin(origin.encode(), None if host is None else host.encode()) is same
