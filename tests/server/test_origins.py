"""Where requests may come from: Origin, Host, Content-Type and forwarding headers, in open mode and in token mode.

The server is asked over loopback; only what the headers say differs. Nothing is stored on any refusal.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.protocol.talk import Address, ok
from tests.server.tokens import ADMIN, SETTINGS
from tests.serving import Server, running

WEB = httpx.Client(verify=False, timeout=20)
PAGE = "https://chat.example.org"

LOCAL_HOSTS = ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}", "10.1.2.3", "relay", "relay-a:8000"]
FOREIGN_HOSTS = ["evil.example", "127.0.0.1.nip.io", "localhost.evil.example:{port}", "a.b", "localhost.", "x y"]

ORIGINS = {
    None: (True, True),
    PAGE: (True, True),
    "http://{host}": (True, True),
    "https://{host}": (True, True),
    "http://localhost": (True, False),
    "http://localhost:5173": (True, False),
    "http://127.0.0.1:3000": (True, False),
    "https://localhost:5173": (False, False),
    "http://localhost.evil.example": (False, False),
    "http://127.0.0.1.evil.example:3000": (False, False),
    "https://evil.example": (False, False),
    "https://chat.example.org.evil.example": (False, False),
    "http://chat.example.org": (False, False),
    "https://chat.example.org:8443": (False, False),
    "null": (False, False),
    "": (False, False),
    "file://": (False, False),
    "chrome-extension://abcdef": (False, False),
    "http://localhost:5173, https://evil.example": (False, False),
}
"""Origin → allowed in open mode, allowed in token mode."""

FORWARDED = [
    "X-Forwarded-For: 1.2.3.4",
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-Host: relay.example.org",
    "X-Forwarded-Proto: https",
    "Forwarded: for=1.2.3.4",
    "X-Real-IP: 127.0.0.1",
    "Via: 1.1 proxy",
    "CF-Connecting-IP: 1.2.3.4",
]


@pytest.fixture(scope="module", params=itertools.product(["open", "tokens"], ["serve", "uvicorn"]), ids=" ".join)
def relay(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Address]]:
    mode, door = request.param
    settings = SETTINGS | {"rate_limit": "0"} if mode == "tokens" else {}
    with running(door, allowed_origins=f"https://other.example.org, {PAGE}", **settings) as server:
        yield server, Address(server.url, ADMIN if settings else None)


def is_open(at: Address) -> bool:
    return not at.headers


def host_of(at: Address, pattern: str) -> str:
    return pattern.replace("{port}", at.url.rpartition(":")[2])


def stored(at: Address) -> int:
    with at.client() as http:
        return int(ok(http.get("/sessions"))["total"])


def post(at: Address, headers: dict[str, str], content_type: str | None = "application/json") -> httpx.Response:
    """POST /prompt to a session that is new if it gets through."""
    types = {} if content_type is None else {"Content-Type": content_type}
    body = json.dumps({"session_id": f"s{next(_numbers)}", "prompt": "x"}).encode()
    return WEB.post(f"{at.url}/prompt", content=body, headers=at.headers | types | headers)


_numbers = itertools.count()


def handshake(at: Address, headers: dict[str, str]) -> int:
    """The status of a WebSocket handshake with these headers."""
    try:
        with connect(
            at.url.replace("http", "ws", 1) + "/ws/s", additional_headers=at.headers | headers, user_agent_header=None
        ):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize("origin", ORIGINS, ids=repr)
def test_an_origin(relay: tuple[Server, Address], origin: str | None) -> None:
    _, at = relay
    host = at.url.removeprefix("http://")
    allowed = ORIGINS[origin][0 if is_open(at) else 1]
    headers = {} if origin is None else {"Origin": origin.replace("{host}", host)}
    before = stored(at)
    answer = post(at, headers)
    assert answer.status_code == (200 if allowed else 403), answer.text
    if not allowed:
        assert answer.json()["code"] == "origin_not_allowed"
    assert stored(at) == before + allowed
    granted = answer.headers.get("access-control-allow-origin")
    assert granted == (headers.get("Origin") if allowed else None)
    assert "access-control-allow-credentials" not in answer.headers

    session = answer.json().get("session_id", "none")
    deleted = WEB.delete(f"{at.url}/sessions/{session}", headers=at.headers | headers)
    assert deleted.status_code == (404 if allowed else 403)
    assert handshake(at, headers) == (101 if allowed else 403)
    # Reading needs no permission, but a page that has none cannot see the answer.
    read = WEB.get(f"{at.url}/messages/none", headers=at.headers | headers)
    assert read.status_code == 404
    assert read.headers.get("access-control-allow-origin") == granted


@pytest.mark.parametrize("origin", ORIGINS, ids=repr)
def test_a_preflight(relay: tuple[Server, Address], origin: str | None) -> None:
    _, at = relay
    host = at.url.removeprefix("http://")
    allowed = origin is not None and ORIGINS[origin][0 if is_open(at) else 1]
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    headers = asked if origin is None else asked | {"Origin": origin.replace("{host}", host)}
    answer = WEB.request("OPTIONS", f"{at.url}/prompt", headers=headers)  # browsers send no token with it
    assert answer.status_code == (204 if allowed else 403)
    if allowed:
        assert answer.headers["access-control-allow-origin"] == headers["Origin"]
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "origin" in answer.headers["vary"].lower()


@pytest.mark.parametrize("host", [*LOCAL_HOSTS, *FOREIGN_HOSTS])
def test_a_host(relay: tuple[Server, Address], host: str) -> None:
    """A name that a stranger's DNS can answer for is DNS rebinding until a token proves otherwise."""
    _, at = relay
    allowed = host in LOCAL_HOSTS or not is_open(at)
    before = stored(at)
    headers = {"Host": host_of(at, host)}
    answer = post(at, headers)
    assert answer.status_code == (200 if allowed else 401), answer.text
    if not allowed:
        assert answer.json()["code"] == "token_required"
        assert "RELAY_CLIENT_TOKEN" in answer.json()["details"]
    assert stored(at) == before + allowed
    assert WEB.get(f"{at.url}/healthz", headers=headers).status_code == 200
    read = WEB.get(f"{at.url}/messages/none", headers=at.headers | headers)
    assert read.status_code == (404 if allowed else 401)


@pytest.mark.parametrize("line", FORWARDED)
def test_a_forwarding_header(relay: tuple[Server, Address], line: str) -> None:
    """Who comes through a proxy on this machine is not on this machine."""
    _, at = relay
    name, _, value = line.partition(": ")
    before = stored(at)
    answer = post(at, {name: value})
    assert answer.status_code == (401 if is_open(at) else 200)
    assert stored(at) == before + (not is_open(at))
    assert handshake(at, {name: value}) == (401 if is_open(at) else 101)


CONTENT_TYPES = {
    "application/json": True,
    "application/json; charset=utf-8": True,
    "text/plain": False,
    "application/x-www-form-urlencoded": False,
    "multipart/form-data; boundary=x": False,
    "application/json, text/plain": False,
    "text/plain; application/json": False,
    None: False,
}


@pytest.mark.parametrize("origin", [None, PAGE, "https://evil.example"])
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
@pytest.mark.parametrize("forwarded", [False, True])
@pytest.mark.parametrize("content_type", CONTENT_TYPES, ids=repr)
def test_all_of_them_together(
    relay: tuple[Server, Address], origin: str | None, host: str, forwarded: bool, content_type: str | None
) -> None:
    _, at = relay
    headers = {"Host": host} | ({"Origin": origin} if origin else {}) | ({"Via": "1.1 x"} if forwarded else {})
    # A page of evil.example under the name evil.example is its own page: DNS rebinding, which Host gives away.
    foreign_page = origin not in (None, PAGE, f"https://{host}")
    if foreign_page:
        status = 403
    elif is_open(at) and (forwarded or host == "evil.example"):
        status = 401
    else:
        status = 200 if CONTENT_TYPES[content_type] else 400
    before = stored(at)
    assert post(at, headers, content_type).status_code == status
    assert stored(at) == before + (status == 200)


def test_a_host_that_is_missing_or_doubled_is_not_local(relay: tuple[Server, Address]) -> None:
    server, at = relay

    def status(head: bytes) -> int:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(b"GET /messages/none HTTP/1.1\r\n" + head + at.header_lines + b"\r\n")
            return int(connection.recv(65_536).split()[1])

    assert status(b"Host: localhost\r\n") == 404
    assert status(b"") in ((401, 400) if is_open(at) else (404, 400))
    assert status(b"Host: localhost\r\nHost: evil.example\r\n") in ((401, 400) if is_open(at) else (404, 400))


def test_pages_are_told_what_they_may_do(relay: tuple[Server, Address]) -> None:
    _, at = relay
    with at.client() as http:
        page = http.get("/docs")
        missing = http.get("/nowhere")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-frame-options"] == "DENY"
    assert "<script" not in page.text
    assert "http://" not in page.text.replace("http://127.0.0.1:8000", "")
    assert missing.headers["cache-control"] == page.headers["cache-control"] == "no-store"
