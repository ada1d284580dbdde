"""Settings in force: the rows of the reading that need one. Limits are in test_quotas.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2 as httpx
import psutil
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


def test_connections_have_a_bound() -> None:
    with talking(max_connections=10) as (talk, server), ExitStack() as stack:
        talk.prompt()  # on the first of them
        first, *_ = [stack.enter_context(dial(server)) for _ in range(8)]
        stack.enter_context(listen(server))
        with httpx.Client(base_url=server.url) as eleventh:
            refused = eleventh.get("/healthz")
            assert_error(refused, 503, "too_many_connections", "Too many connections", "this server has at most 10")
            assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert refusal(server)[0] == 503
        many = [stack.enter_context(dial(server)) for _ in range(100)]  # they ask for nothing, and hold nothing up
        assert {connection.recv(12) for connection in many} == {b"HTTP/1.1 503"}
        talk.round_trip()
        first.close()
        wait_until(lambda: "relay_open_connections 9.0" in talk.http.get("/metrics").text)
        with listen(server) as client:
            talk.round_trip(client)


def dial(server: Server) -> socket.socket:
    """A connection that has asked for something, and may be kept."""
    address = httpx.URL(server.url)
    connection = socket.create_connection((address.host, address.port or 80), timeout=10)
    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection


def test_the_process_may_open_as_many_files_as_it_is_allowed_to(server: Server) -> None:
    soft, hard = psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard


def test_a_deleted_session_closes_even_a_socket_that_just_joined() -> None:
    with talking() as (talk, server):
        for _ in range(20):
            talk.prompt()
            with listen(server) as client:
                ok(talk.http.delete("/sessions/s1"))
                assert closed(client)[0] == 4404
