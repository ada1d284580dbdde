"""Two instances that share one Redis count together what concerns a session, a token or an address."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.protocol.talk import Address, Talk, assert_error, ok, wait_until
from tests.server.tokens import SECRET, bearer, session_token
from tests.serving import running
from tests.store.redis_server import shared_server

ADMIN, WATCHER = "admin-of-two-instances-000001", "watcher-of-two-instances-0001"
RATE, BURST = 20, 40
LIMITS = {
    "max_pending_per_session": 3,
    "max_sessions": 3,
    "max_subscribers_per_session": 3,
    "max_waiting_polls_per_session": 3,
    "rate_limit": RATE,
    "failed_logins_per_minute": 3,
}


@pytest.fixture(scope="module")
def two() -> Iterator[list[Address]]:
    """The addresses of both, for an admin."""
    redis = shared_server()
    redis.ask("FLUSHALL")
    with ExitStack() as stack:
        settings = LIMITS | {"store_url": redis.url, "admin_token": f"{ADMIN}, {WATCHER}", "secret": SECRET}
        servers = [stack.enter_context(running(door, **settings)) for door in ("serve", "uvicorn")]
        yield [Address(server.url, ADMIN) for server in servers]


@pytest.fixture
def clients(two: list[Address]) -> Iterator[list[httpx.Client]]:
    """One for each instance; there are no sessions, and every bucket is full."""
    shared_server().ask("FLUSHALL")
    with two[0].client() as first, two[1].client() as second:
        yield [first, second]


def watched(client: httpx.Client, session_id: str) -> dict[str, Any]:
    """What one instance knows of a session; asked by somebody else, as often as it takes."""
    return dict(client.get(f"/sessions/{session_id}", headers=bearer(WATCHER)).json())


def test_pending_prompts(clients: list[httpx.Client]) -> None:
    first, second = (Talk(client, "s1") for client in clients)
    asked = [first.prompt(), second.prompt(), first.prompt()]
    for each in (first, second):
        details = "this session holds at most 3 unanswered prompts"
        assert_error(each.post_prompt(), 429, "too_many_pending", "Too many pending prompts", details)
    second.respond(asked[0])
    second.prompt()


def test_sessions(clients: list[httpx.Client]) -> None:
    for n in range(3):
        Talk(clients[n % 2], f"s{n}").prompt()
    for client in clients:
        details = "this server holds at most 3 sessions"
        assert_error(Talk(client, "s3").post_prompt(), 503, "too_many_sessions", "Too many sessions", details)
    ok(clients[0].delete("/sessions/s1"))
    Talk(clients[1], "s3").prompt()


def test_clients_of_a_session(two: list[Address], clients: list[httpx.Client]) -> None:
    Talk(clients[0], "s1").respond(Talk(clients[0], "s1").prompt())
    with ExitStack() as stack:
        sockets = [stack.enter_context(two[n % 2].connect("/ws/s1")) for n in range(3)]
        for each in two:
            with pytest.raises(InvalidStatus) as refused:
                each.connect("/ws/s1")
            assert refused.value.response.status_code == 503
            assert json.loads(refused.value.response.body)["details"] == "a session has at most 3 connected clients"
        sockets[1].close()
        wait_until(lambda: watched(clients[1], "s1").get("clients") == 0)
        Talk(clients[1], "s1").round_trip(stack.enter_context(two[0].connect("/ws/s1")))


def test_waiting_polls_of_a_session(clients: list[httpx.Client]) -> None:
    talk = Talk(clients[0], "s1")
    talk.respond(talk.prompt())
    with ThreadPoolExecutor(3) as agents:
        polls = [agents.submit(clients[n % 2].get, "/prompts/s1") for n in range(3)]
        wait_until(lambda: [watched(each, "s1").get("waiting_agents") for each in clients] == [2, 1])
        for client in clients:
            details = "a session has at most 3 waiting polls"
            assert_error(client.get("/prompts/s1"), 429, "too_many_polls", "Too many waiting polls", details)
        prompt = talk.prompt()
        assert [len(poll.result(10).json()) for poll in polls] == [1, 1, 1]
        talk.respond(prompt)  # not before: a poll that looks only then finds nothing, and waits on
        again = agents.submit(clients[1].get, "/prompts/s1")
        wait_until(lambda: watched(clients[1], "s1").get("waiting_agents") == 1)
        talk.prompt()
        assert len(again.result(10).json()) == 1


def test_requests_of_a_token(clients: list[httpx.Client]) -> None:
    token = bearer(session_token("client", "s1"))
    began = time.monotonic()
    passed = 0
    while clients[passed % 2].get("/messages/s1", headers=token).status_code == 404:
        passed += 1
    elapsed = time.monotonic() - began - 1  # the refusal came a second later
    assert BURST <= passed <= BURST + RATE * elapsed + 1
    other = bearer(session_token("client", "s2"))
    assert [client.get("/messages/s2", headers=other).status_code for client in clients] == [404, 404]


def test_refused_tokens_of_an_address(clients: list[httpx.Client]) -> None:
    headers = bearer("a-token-that-nobody-has-given") | {"X-Forwarded-For": "203.0.113.1"}
    codes = [clients[n % 2].get("/messages/s1", headers=headers).json()["code"] for n in range(3)]
    assert codes == ["invalid_token"] * 3
    with ThreadPoolExecutor(2) as both:
        refused = list(both.map(lambda client: client.get("/messages/s1", headers=headers), clients))
    assert [answer.json()["code"] for answer in refused] == ["too_many_failed_logins"] * 2
    assert all(15 <= int(answer.headers["retry-after"]) <= 19 for answer in refused)
    assert clients[0].get("/messages/s1", headers={"X-Forwarded-For": "203.0.113.1"}).status_code == 404


def test_a_ticket_of_one_is_good_at_the_other_and_once(two: list[Address], clients: list[httpx.Client]) -> None:
    ticket = ok(clients[0].post("/ticket"))["ticket"]
    strangers = [Address(each.url) for each in two]
    with strangers[1].connect(f"/ws/s1?ticket={ticket}") as client:
        Talk(clients[0], "s1").round_trip(client)
    for stranger in strangers:
        with pytest.raises(InvalidStatus) as refused:
            stranger.connect(f"/ws/s1?ticket={ticket}")
        assert json.loads(refused.value.response.body)["code"] == "invalid_token"
