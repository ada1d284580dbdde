"""How often one may ask: requests of a token, requests of an address without one, refused tokens of an address."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.protocol.talk import assert_error
from tests.server.tokens import ADMIN, AGENT, CLIENT, SECRET, bearer, offer, session_token
from tests.serving import Server, running

WEB = httpx.Client(verify=False, timeout=20)
RATE, BURST = 5, 10
BAD = "a-token-that-nobody-has-given"


@pytest.fixture(scope="module")
def relay() -> Iterator[Server]:
    settings = {"client_token": CLIENT, "agent_token": AGENT, "admin_token": ADMIN, "secret": SECRET}
    with running("serve", **settings, rate_limit=RATE, failed_logins_per_minute=0) as server:
        yield server


def until_refused(ask: Callable[[], httpx.Response]) -> tuple[int, httpx.Response]:
    """How many get through at once, and the first that does not."""
    began = time.monotonic()
    passed = 0
    while (answer := ask()).status_code != 429:
        passed += 1
        assert passed < 200
    # It is answered a second later, and meanwhile nothing has come through.
    elapsed = time.monotonic() - began - 1
    assert BURST <= passed <= BURST + RATE * elapsed + 1
    return passed, answer


def get(relay: Server, path: str, token: str | None = None, address: str | None = None) -> httpx.Response:
    forwarded = {"X-Forwarded-For": address} if address else {}
    return WEB.get(relay.url + path, headers=bearer(token) | forwarded)


def is_limited(answer: httpx.Response) -> None:
    assert_error(answer, 429, "rate_limited", "Rate limit exceeded", "at most 5 requests per second")
    assert answer.headers["retry-after"] == "1"


def test_requests_of_a_token(relay: Server) -> None:
    own, other = session_token("client", "a"), session_token("client", "b")
    _, refused = until_refused(lambda: get(relay, "/messages/a", own))
    is_limited(refused)
    assert get(relay, "/messages/b", other).status_code == 404
    assert get(relay, "/messages/a", ADMIN).status_code == 404
    assert get(relay, "/messages/a").status_code == 401, "a token's requests are not its address's"
    with ThreadPoolExecutor(1) as waiting:  # and what is refused meanwhile costs nothing
        waiting.submit(get, relay, "/messages/a", own)
    assert get(relay, "/messages/a", own).status_code == 404


def test_requests_of_an_address_without_a_token(relay: Server) -> None:
    own, other = "203.0.113.1", "203.0.113.2"
    paths = itertools.cycle(["/messages/a", "/healthz", "/nowhere", "/docs"])
    _, refused = until_refused(lambda: get(relay, next(paths), address=own))
    is_limited(refused)
    assert [get(relay, path, address=other).status_code for path in ("/healthz", "/docs")] == [200, 401]
    assert get(relay, "/docs", ADMIN, own).status_code == 200


def test_refusals_count_as_well(relay: Server) -> None:
    """403 for the role or the session, foreign origins, preflights: none is free."""
    agent, client = session_token("agent", "c"), session_token("client", "d")
    asked: list[Callable[[], httpx.Response]] = [
        lambda: WEB.post(f"{relay.url}/prompt", headers=bearer(agent), json={}),
        lambda: get(relay, "/messages/other", client),
        lambda: WEB.post(
            f"{relay.url}/prompt", headers={"Origin": "https://evil.example", "X-Forwarded-For": "203.0.113.51"}
        ),
        lambda: WEB.request(
            "OPTIONS",
            f"{relay.url}/prompt",
            headers={
                "Origin": "https://evil.example",
                "Access-Control-Request-Method": "POST",
                "X-Forwarded-For": "203.0.113.52",
            },
        ),
    ]
    with ThreadPoolExecutor(len(asked)) as at_once:
        for _, refused in at_once.map(until_refused, asked):
            is_limited(refused)


def test_handshakes_count_as_well(relay: Server) -> None:
    def handshake(**arguments: Any) -> httpx.Response:
        try:
            with connect(f"{relay.ws_url}/ws/e", **arguments):
                return httpx.Response(101)
        except InvalidStatus as refused:
            said = refused.response
            return httpx.Response(said.status_code, headers=list(said.headers.raw_items()), content=bytes(said.body))

    ways: list[dict[str, Any]] = [
        {"subprotocols": offer(session_token("client", "e"))},
        {"additional_headers": {"X-Forwarded-For": "203.0.113.61"}},
    ]
    with ThreadPoolExecutor(2) as at_once:
        for _, refused in at_once.map(lambda way: until_refused(lambda: handshake(**way)), ways):
            is_limited(refused)


def test_retry_after_is_true() -> None:
    with running("serve", client_token=CLIENT, rate_limit=0.5) as server:
        assert get(server, "/messages/a", CLIENT).status_code == 404
        refused = get(server, "/messages/a", CLIENT)
        assert refused.status_code == 429
        assert refused.json()["details"] == "at most 0.5 requests per second"
        assert refused.headers["retry-after"] == "1"  # of two seconds, one has passed
        time.sleep(1)  # the caller does as it is told, and no other event will tell
        assert get(server, "/messages/a", CLIENT).status_code == 404


def fail(server: Server, address: str, token: str = BAD) -> str:
    """What a refused token gets: the code of the error."""
    answer = get(server, "/messages/a", token, address)
    if answer.status_code == 429:
        sentence = ("Too many failed logins", "at most 2 refused tokens per minute")
        assert (answer.json()["error"], answer.json()["details"]) == sentence
        assert 25 <= int(answer.headers["retry-after"]) <= 29, (
            "in half a minute there is one more, and one second is over"
        )
    else:
        assert answer.status_code == 401
    return str(answer.json()["code"])


def test_refused_tokens_of_an_address() -> None:
    with running("serve", client_token=CLIENT, secret=SECRET, failed_logins_per_minute=2) as server:

        def fails(*addresses: str) -> list[str]:
            return [fail(server, address) for address in addresses]

        cases = {
            "one address": ["203.0.113.1"] * 3,
            "what a caller puts in front": [f"198.51.100.{n}, 203.0.113.2" for n in range(3)],
            "one network of IPv6": [f"2001:db8:0:1:{n}::{n}" for n in range(1, 4)],
            "IPv4 in the clothes of IPv6": ["203.0.113.3", "::ffff:203.0.113.3", "::ffff:cb00:7103"],
        }
        with ThreadPoolExecutor(len(cases)) as at_once:
            for codes in at_once.map(lambda addresses: fails(*addresses), cases.values()):
                assert codes == ["invalid_token", "invalid_token", "too_many_failed_logins"]
        assert fails("2001:db8:0:2::1", "203.0.113.4") == ["invalid_token"] * 2, "others may still err"
        for token in (CLIENT, session_token()):
            assert get(server, "/messages/own", token, "203.0.113.1").status_code == 404, "valid tokens pass"
        assert get(server, "/messages/a", None, "203.0.113.1").json()["code"] == "token_required"
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{server.ws_url}/ws/a?ticket=guessed", additional_headers={"X-Forwarded-For": "203.0.113.1"})
        assert json.loads(refused.value.response.body)["code"] == "too_many_failed_logins"


def test_an_untrusted_proxy_separates_nobody_and_in_time_all_is_forgiven() -> None:
    settings = {"client_token": CLIENT, "trusted_proxies": "10.0.0.0/8", "failed_logins_per_minute": 60}
    with running("serve", **settings) as server:
        began = time.monotonic()
        passed = 0
        while (answer := get(server, "/messages/a", BAD, f"203.0.113.{passed}")).status_code == 401:
            passed += 1
        assert 60 <= passed <= 60 + time.monotonic() - began
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert get(server, "/messages/a", BAD).status_code == 401, "a second has passed: there is one more"
