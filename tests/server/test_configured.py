"""Settings in force: the rows of the reading that need one, and each limit filled, exceeded and freed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.protocol.talk import Talk, assert_error, closed, next_frame, ok, wait_until
from tests.serving import Server, running


@contextmanager
def talking(**settings: object) -> Iterator[tuple[Talk, Server]]:
    with running("serve", **settings) as server, httpx.Client(base_url=server.url, timeout=20) as http:
        yield Talk(http, "s1"), server


def listen(server: Server, session_id: str = "s1") -> ClientConnection:
    return connect(f"{server.ws_url}/ws/{session_id}")


def refusal(server: Server, session_id: str = "s1") -> tuple[int, dict[str, str]]:
    with pytest.raises(InvalidStatus) as refused:
        listen(server, session_id)
    return refused.value.response.status_code, json.loads(refused.value.response.body)


def test_row_01_reject_refuses_a_socket_to_an_unknown_session_with_404() -> None:
    with talking(ws_unknown_session="reject") as (talk, server):
        assert refusal(server) == (404, {"error": "Session does not exist", "code": "session_not_found"})
        talk.prompt()
        with listen(server) as client:
            talk.round_trip(client)
        assert not [line for line in server.lines if "handshake" in line]


def test_row_20_an_idle_session_is_collected_but_never_one_in_use_or_with_a_pending_prompt() -> None:
    with talking(session_ttl_seconds=0.4) as (talk, server):
        pending, listened, idle = (Talk(talk.http, name) for name in ("pending", "listened", "idle"))
        pending.prompt()
        listened.respond(listened.prompt())
        idle.respond(idle.prompt())
        with listen(server, "listened"):
            wait_until(lambda: talk.http.get("/sessions/idle").status_code == 404)
            server.wait_for_line("sessions_collected")
            assert pending.session()["pending"] == 1
            assert listened.session()["clients"] == 1
        pending.respond(pending.pending_ids()[0])
        wait_until(lambda: ok(talk.http.get("/sessions"))["total"] == 0)


def test_row_22_without_history_everything_else_works() -> None:
    with talking(history="false") as (talk, server):
        with listen(server) as client:
            talk.round_trip(client)
        client_msg_id = talk.prompt(client_msg_id="p1")
        assert talk.messages() == {"session_id": "s1", "messages": [], "total": 0, "limit": 100, "offset": 0}
        talk.respond(client_msg_id, assistant_msg_id="a1")
        talk.respond(client_msg_id, assistant_msg_id="a1")
        assert talk.post_response(client_msg_id, "other", assistant_msg_id="a1").status_code == 409
        talk.prompt(client_msg_id="p1")
        assert talk.pending() == []


def test_pings_come_at_the_interval() -> None:
    with talking(ping_seconds=0.1) as (_, server), listen(server) as client:
        pings = [next_frame(client, pings=True) for _ in range(3)]
        assert [ping["type"] for ping in pings] == ["ping"] * 3
        times = [ping["ts"] for ping in pings]
        assert times == sorted(times)


def test_a_client_that_answers_no_ping_stays_connected() -> None:
    with talking(ping_seconds=0.02) as (talk, server), listen(server) as client:
        for _ in range(50):
            assert next_frame(client, pings=True)["type"] == "ping"
        talk.round_trip(client)


def test_pending_prompts_have_a_bound() -> None:
    with talking(max_pending_per_session=2) as (talk, _):
        first = talk.prompt(client_msg_id="p1")
        talk.prompt()
        refused = talk.post_prompt()
        assert_error(
            refused,
            429,
            "too_many_pending",
            "Too many pending prompts",
            "this session holds at most 2 unanswered prompts",
        )
        assert int(refused.headers["retry-after"]) >= 1
        ok(talk.post_prompt(client_msg_id="p1"))
        ok(Talk(talk.http, "s2").post_prompt())
        talk.respond(first)
        talk.prompt()
        assert len(talk.pending()) == 2


def test_sessions_have_a_bound() -> None:
    with talking(max_sessions=1) as (talk, _):
        talk.prompt()
        other = Talk(talk.http, "s2")
        assert_error(
            other.post_prompt(), 503, "too_many_sessions", "Too many sessions", "this server holds at most 1 sessions"
        )
        ok(talk.http.delete("/sessions/s1"))
        other.prompt()


def test_clients_have_a_bound_per_session_and_in_all() -> None:
    with talking(max_subscribers_per_session=1, max_subscribers=2) as (talk, server), ExitStack() as stack:
        first = stack.enter_context(listen(server, "s1"))
        status, body = refusal(server, "s1")
        assert (status, body["code"], body["details"]) == (
            503,
            "too_many_subscribers",
            "a session has at most 1 connected clients",
        )
        stack.enter_context(listen(server, "s2"))
        status, body = refusal(server, "s3")
        assert (status, body["code"], body["details"]) == (503, "too_many_subscribers", "this server has at most 2")
        first.close()
        wait_until(lambda: "relay_connected_clients 1.0" in talk.http.get("/metrics").text)
        with listen(server, "s1") as client:
            talk.round_trip(client)


def test_waiting_polls_have_a_bound() -> None:
    with talking(max_waiting_polls=1) as (talk, server), httpx.Client(base_url=server.url, timeout=20) as other:
        talk.respond(talk.prompt())
        with ThreadPoolExecutor(1) as agent:
            waiting = agent.submit(other.get, "/prompts/s1")
            wait_until(lambda: talk.session()["waiting_agents"] == 1)
            refused = talk.http.get("/prompts/s1")
            assert_error(
                refused, 429, "too_many_polls", "Too many waiting polls", "this server lets at most 1 polls wait"
            )
            assert talk.pending(wait="true", timeout=0) == []
            client_msg_id = talk.prompt()
            assert [p["client_msg_id"] for p in waiting.result(5).json()] == [client_msg_id]
            assert talk.pending(wait="true")[0]["client_msg_id"] == client_msg_id


def test_a_full_memory_store_refuses_and_recovers() -> None:
    with talking(store_max_bytes=1024**2) as (talk, _):
        text = "x" * 100_000
        kept = 0
        while (answer := talk.post_prompt(text)).status_code == 200:
            kept += 1
        assert_error(answer, 503, "store_full", "The store is full", "this server keeps at most 1048576 bytes")
        assert 3 <= kept <= 10
        assert len(talk.pending()) == kept
        assert Talk(talk.http, "s2").post_prompt(text).status_code == 503
        ok(talk.http.delete("/sessions/s1"))
        Talk(talk.http, "s2").round_trip()


def test_history_is_kept_within_its_bound_and_pending_prompts_survive_it() -> None:
    with talking(history_max_messages=1000) as (talk, _):
        first = talk.prompt("the very first")
        other = talk.prompt()
        for n in range(1100):
            talk.respond(other, f"answer {n}")
        page = talk.messages(limit=1000)
        assert page["total"] == 1000
        assert [m["data"]["text"] for m in page["messages"]] == [f"answer {n}" for n in range(100, 1100)]
        assert [p["prompt"] for p in talk.pending()] == ["the very first"]
        talk.respond(first)
        assert talk.pending() == []


def test_a_deleted_session_closes_even_a_socket_that_just_joined() -> None:
    with talking() as (talk, server):
        for _ in range(20):
            talk.prompt()
            with listen(server) as client:
                ok(talk.http.delete("/sessions/s1"))
                assert closed(client)[0] == 4404
