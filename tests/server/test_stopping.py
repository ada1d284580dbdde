"""SIGTERM: polls are answered, sockets are told, the process ends with 0 within 10 s."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from websockets.sync.client import connect

from tests.protocol.talk import Talk, closed, wait_until
from tests.serving import DOORS, running


@pytest.mark.parametrize("door", DOORS)
def test_sigterm_answers_waiting_polls_and_closes_sockets_with_1012(door: str) -> None:
    with running(door) as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        talk.respond(talk.prompt())
        with ThreadPoolExecutor(5) as agents, connect(f"{server.ws_url}/ws/s1") as client:
            polls = [agents.submit(httpx.get, f"{server.url}/prompts/s1", timeout=20) for _ in range(5)]
            wait_until(lambda: talk.session()["waiting_agents"] == 5)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert [(p.result(9).status_code, p.result().json()) for p in polls] == [(200, [])] * 5
            assert closed(client)[0] == 1012
        code = server.stop()
        assert time.monotonic() - began < 10
        assert code == (0 if door == "serve" else -signal.SIGTERM)  # uvicorn's own command ends by the signal
        assert "server_stopping" in {event["event"] for event in server.events()}
        assert not [line for line in server.lines if "Traceback" in line]


def test_ctrl_c_stops_it_in_order() -> None:
    with running() as server:
        assert server.stop(signal.SIGINT) == 0
        assert [event["event"] for event in server.events()][-2:] == ["server_stopping", "server_stopped"]


def test_a_client_that_does_not_read_does_not_hold_up_the_stop() -> None:
    with running() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        client_msg_id = talk.prompt()
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as stuck:
            stuck.sendall(
                b"GET /ws/s1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            wait_until(lambda: talk.session()["clients"] == 1)
            for _ in range(100):
                talk.respond(client_msg_id, "x" * 100_000)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 10


def test_a_second_ctrl_c_leaves_no_traceback() -> None:
    with running() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        talk.prompt()
        with connect(f"{server.ws_url}/ws/s1"):
            server.process.send_signal(signal.SIGINT)
            server.wait_for_line("server_stopping")
            assert server.stop(signal.SIGINT) == 0
        assert not [line for line in server.lines if "Traceback" in line or '"error"' in line], server.lines
