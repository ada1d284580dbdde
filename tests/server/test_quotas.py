"""Every limit of a process: filled to its bound (works), one more (its exact error), freed (works again).

How often one may ask is in test_rates.py, what instances count together in test_shared_quotas.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.protocol.talk import Address, Talk, assert_error, ok, wait_until
from tests.serving import running

LIMITS = {
    "max_pending_per_session": 2,
    "max_sessions": 4,
    "max_subscribers_per_session": 2,
    "max_subscribers": 3,
    "max_waiting_polls_per_session": 2,
    "max_waiting_polls": 3,
    "max_metadata_bytes": 1024,
    "max_metadata_depth": 3,
    "history_max_messages": 1000,
    "history_max_bytes": 1024**2,
    "store_max_bytes": 4 * 1024**2,
}


@pytest.fixture(scope="module")
def at() -> Iterator[Address]:
    with running("serve", **LIMITS) as server:
        yield Address(server.url)


@pytest.fixture
def talk(at: Address) -> Iterator[Talk]:
    """The session s1; there is none at the start, and nobody listens."""
    with at.client() as http:
        for session in ok(http.get("/sessions"))["sessions"]:
            http.delete(f"/sessions/{session['session_id']}")
        wait_until(lambda: gauges(http) == (0, 0))
        yield Talk(http, "s1")


def gauges(http: httpx.Client) -> tuple[float, float]:
    """Connected clients and waiting polls of the process."""
    lines = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
    return float(lines["relay_connected_clients"]), float(lines["relay_waiting_polls"])


def refusal(at: Address, session_id: str) -> tuple[int, str | None, dict[str, str]]:
    """Status, Retry-After and body of a refused handshake."""
    with pytest.raises(InvalidStatus) as refused:
        at.connect(f"/ws/{session_id}")
    response = refused.value.response
    return response.status_code, response.headers.get("retry-after"), json.loads(response.body)


def test_pending_prompts(talk: Talk) -> None:
    first = talk.prompt(client_msg_id="p1")
    talk.prompt()
    refused = talk.post_prompt()
    details = "this session holds at most 2 unanswered prompts"
    assert_error(refused, 429, "too_many_pending", "Too many pending prompts", details)
    assert refused.headers["retry-after"] == "1"
    assert len(talk.pending()) == 2
    ok(talk.post_prompt(client_msg_id="p1"))  # a repetition needs no room
    ok(Talk(talk.http, "s2").post_prompt())
    talk.respond(first)
    talk.prompt()
    assert len(talk.pending()) == 2


def test_sessions(talk: Talk) -> None:
    sessions = [Talk(talk.http, f"s{n}") for n in range(1, 6)]
    for each in sessions[:4]:
        each.prompt()
    refused = sessions[4].post_prompt()
    assert_error(refused, 503, "too_many_sessions", "Too many sessions", "this server holds at most 4 sessions")
    assert refused.headers["retry-after"] == "30"
    assert talk.http.get("/sessions/s5").status_code == 404
    sessions[0].prompt()
    ok(talk.http.delete("/sessions/s2"))
    sessions[4].prompt()


def test_clients_of_a_session_and_of_the_process(at: Address, talk: Talk) -> None:
    body = {"error": "Too many connected clients", "code": "too_many_subscribers"}
    with ExitStack() as stack:
        first = stack.enter_context(at.connect("/ws/s1"))
        stack.enter_context(at.connect("/ws/s1"))
        assert refusal(at, "s1") == (503, "5", body | {"details": "a session has at most 2 connected clients"})
        other = stack.enter_context(at.connect("/ws/s2"))
        assert refusal(at, "s3") == (503, "5", body | {"details": "this server has at most 3"})
        first.close()
        wait_until(lambda: gauges(talk.http)[0] == 2)
        third = stack.enter_context(at.connect("/ws/s1"))
        talk.round_trip(third)
        other.close()
        wait_until(lambda: gauges(talk.http)[0] == 2)
        Talk(talk.http, "s3").round_trip(stack.enter_context(at.connect("/ws/s3")))


def test_waiting_polls_of_a_session_and_of_the_process(at: Address, talk: Talk) -> None:
    other = Talk(talk.http, "s2")
    for each in (talk, other):
        each.respond(each.prompt())
    with at.client() as http, ThreadPoolExecutor(4) as agents:

        def wait(session_id: str, waiting: int) -> Future[Any]:
            poll = agents.submit(http.get, f"/prompts/{session_id}")
            wait_until(lambda: gauges(talk.http)[1] == waiting)
            return poll

        own = [wait("s1", 1), wait("s1", 2)]
        refused = talk.http.get("/prompts/s1")
        assert_error(refused, 429, "too_many_polls", "Too many waiting polls", "a session has at most 2 waiting polls")
        assert refused.headers["retry-after"] == "1"
        others = wait("s2", 3)
        refused = talk.http.get("/prompts/s2")
        assert_error(refused, 429, "too_many_polls", "Too many waiting polls", "this server lets at most 3 polls wait")
        assert talk.pending(wait="true", timeout=0) == []  # who does not wait needs no place
        client_msg_id = talk.prompt()
        for poll in own:
            assert [prompt["client_msg_id"] for prompt in poll.result(10).json()] == [client_msg_id]
        talk.respond(client_msg_id)
        again = [wait("s1", 2), wait("s1", 3)]
        client_msg_id = talk.prompt()
        assert [len(poll.result(10).json()) for poll in again] == [1, 1]
        assert other.prompt() == others.result(10).json()[0]["client_msg_id"]


def test_a_poll_whose_caller_has_gone_leaves_its_place(at: Address, talk: Talk) -> None:
    talk.respond(talk.prompt())
    for _ in range(3):
        with at.client(timeout=0.2) as http, pytest.raises(httpx.ReadTimeout):
            http.get("/prompts/s1")
        wait_until(lambda: gauges(talk.http)[1] == 0)
    assert talk.pending(wait="true", timeout=0.01) == []


def nested(levels: int) -> dict[str, Any]:
    return {} if levels == 1 else {"a": nested(levels - 1)}


def test_metadata(talk: Talk) -> None:
    largest = {"k": "v" * (1024 - len('{"k":""}'))}
    talk.prompt(client_msg_id="p1", metadata=largest)
    too_large = {"k": largest["k"] + "v"}
    for refused in (talk.post_prompt(metadata=too_large), talk.post_response("p1", metadata=too_large)):
        details = "metadata is over 1024 bytes of JSON"
        assert_error(refused, 400, "message_too_large", "Message exceeds size limit", details)
        assert "retry-after" not in refused.headers
    for refused in (talk.post_prompt(metadata=nested(4)), talk.post_response("p1", metadata=nested(4))):
        details = "metadata is nested deeper than 3 levels"
        assert_error(refused, 400, "invalid_field", "Invalid request body", details)
    talk.respond("p1", metadata=nested(3))
    assert talk.messages()["messages"][0]["data"]["metadata"] == largest


def test_messages_of_a_history(talk: Talk) -> None:
    """The oldest go, pending prompts never."""
    first, other = talk.prompt("the very first"), talk.prompt()
    for n in range(998):
        talk.respond(other, f"answer {n}")
    assert talk.messages()["messages"][0]["data"]["prompt"] == "the very first"
    for n in range(998, 1010):
        talk.respond(other, f"answer {n}")
    page = talk.messages(limit=1000)
    assert page["total"] == 1000
    assert [message["data"]["text"] for message in page["messages"]] == [f"answer {n}" for n in range(10, 1010)]
    assert [prompt["prompt"] for prompt in talk.pending()] == ["the very first"]
    talk.respond(first)
    assert talk.pending() == []


def test_bytes_of_a_history(talk: Talk) -> None:
    first, other = talk.prompt("the very first"), talk.prompt()
    for n in range(12):
        talk.respond(other, f"{n:02}" + "x" * 100_000)
    texts = [message["data"]["text"][:2] for message in talk.messages()["messages"]]
    assert texts == [f"{n:02}" for n in range(2, 12)]
    assert talk.pending_ids() == [first]


def test_memory_of_the_store(talk: Talk) -> None:
    text = "x" * 120_000
    session_ids = iter(f"s{n}" for n in range(2, 50))
    kept = 0
    while True:  # two pending prompts of each session, then further answers, as long as there is room
        answer = talk.post_prompt(text, client_msg_id=f"p{kept}")
        if answer.status_code == 429:
            answer = talk.post_response("p0", text)
        if answer.status_code != 200:
            break
        kept += 1
        if kept % 8 == 0:
            talk = Talk(talk.http, next(session_ids))
            ok(talk.post_prompt(client_msg_id="p0"))
    assert_error(answer, 503, "store_full", "The store is full", "this server keeps at most 4194304 bytes")
    assert answer.headers["retry-after"] == "30"
    assert 12 <= kept <= 34
    ok(talk.post_prompt("x", client_msg_id="p0"))  # a repetition needs no room
    ok(talk.http.delete("/sessions/s1"))
    talk.respond("p0", text)
    Talk(talk.http, "s1").round_trip()
