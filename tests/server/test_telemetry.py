"""Logs and metrics of a running relay."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from relay.server.logs import EVENTS
from tests.protocol.talk import Talk, next_frame, next_message, wait_until
from tests.serving import DOORS, ROOT, Server, environment, running

SECRET = "my-secret-words"


def names(server: Server) -> list[str]:
    return [event["event"] for event in server.events()]


@pytest.mark.parametrize("door", DOORS)
def test_the_key_events_are_logged_as_json_lines_without_any_text(door: str) -> None:
    with running(door, log_level="debug") as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        with connect(f"{server.ws_url}/ws/s1") as client:
            talk.prompt(SECRET, client_msg_id="p1", metadata={"key": SECRET})
            talk.post_prompt(SECRET, client_msg_id="p1")
            talk.pending()
            talk.respond("p1", SECRET, assistant_msg_id="a1", metadata={"key": SECRET})
            next_message(client)
            client.send(json.dumps({"type": SECRET}))
            next_frame(client)
        http.post("/prompt", json={"session_id": "s1", "prompt": [SECRET]})
        http.get(f"/{SECRET}")
        http.delete("/sessions/s1")
        server.stop()
    events = {event["event"]: event for event in server.events()}
    assert events["prompt_stored"] == {
        "time": events["prompt_stored"]["time"],
        "level": "info",
        "event": "prompt_stored",
        "session_id": "s1",
        "client_msg_id": "p1",
        "bytes": events["prompt_stored"]["bytes"],
        "duplicate": True,
    }
    assert events["prompt_fetched"]["count"] == 1
    assert events["response_posted"]["assistant_msg_id"] == "a1"
    assert events["client_connected"]["session_id"] == "s1"
    assert events["client_disconnected"]["close_code"] == 1000
    assert events["session_deleted"]["session_id"] == "s1"
    refused = [event["code"] for event in server.events() if event["event"] == "request_refused"]
    assert refused == ["invalid_field", "not_found"]
    assert set(events) <= set(EVENTS)
    ours = [line for line in server.lines if line.startswith("{")]
    assert not [line for line in ours if SECRET in line]


@pytest.mark.parametrize("door", DOORS)
def test_refusals_and_hang_ups_leave_no_error_in_the_log(door: str) -> None:
    with running(door) as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        client_msg_id = talk.prompt()
        for path in ("/ws", "/ws/", "/nope", "/ws/" + "x" * 300):
            with pytest.raises(InvalidStatus), connect(server.ws_url + path):
                pass
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        for request in (
            b"GET /prompts/s1",
            b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            b"GET /ws/s1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        ):
            with socket.create_connection(address) as half:
                half.sendall(request)
                # Gone without a word: the kernel resets the connection.
                half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        wait_until(lambda: talk.session()["clients"] == 0)
        talk.respond(client_msg_id)
        talk.round_trip()
        server.stop()
    for line in server.lines:
        assert "Traceback" not in line
        assert "rror" not in line.replace('"level":"error"', "ERROR!"), line
        assert '"level":"error"' not in line


def test_what_happens_is_counted() -> None:
    with running("serve", ping_seconds=3600) as server, httpx.Client(base_url=server.url, timeout=20) as http:
        talk = Talk(http, "s1")
        with connect(f"{server.ws_url}/ws/s1") as client:
            talk.round_trip(client)
            talk.prompt(client_msg_id="p1")
            talk.prompt(client_msg_id="p1")
            talk.respond("p1", assistant_msg_id="a1")
            talk.respond("p1", assistant_msg_id="a1")
            talk.pending(wait="true", timeout=0.01)
            http.post("/prompt", json={})
            during = metrics(http)
        wait_until(lambda: metrics(http)["relay_connected_clients"] == 0)
        after = metrics(http)
    assert during["relay_connected_clients"] == 1
    expected = {
        "relay_prompts_total": 2,
        "relay_responses_total": 2,
        'relay_duplicates_total{kind="prompt"}': 1,
        'relay_duplicates_total{kind="response"}': 1,
        "relay_connections_total": 1,
        'relay_disconnects_total{code="1000"}': 1,
        'relay_poll_wakeups_total{cause="timeout"}': 1,
        'relay_poll_wakeups_total{cause="prompt"}': 0,
        'relay_errors_total{code="missing_field"}': 1,
        "relay_queue_overflows_total": 0,
        "relay_fan_out_seconds_count": 2,
        "relay_waiting_polls": 0,
    }
    assert {name: after[name] for name in expected} == expected
    assert after["relay_loop_lag_seconds"] < 5
    assert after["process_resident_memory_bytes"] > 0


def metrics(http: httpx.Client) -> dict[str, float]:
    lines = (line for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_close_codes_that_a_client_makes_up_share_one_series() -> None:
    with running() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        for code in range(4100, 4110):
            with connect(f"{server.ws_url}/ws/s1") as client:
                client.close(code)
        wait_until(lambda: metrics(http).get('relay_disconnects_total{code="other"}') == 10)
        assert not [name for name in metrics(http) if 'code="41' in name]


def test_a_log_that_nobody_reads_holds_nothing_up() -> None:
    """Neither a reader that has died nor one that is stuck may keep a request from its answer."""
    for dead in (True, False):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [*DOORS["serve"][:2], "--port", "0"], cwd=ROOT, env=environment(log_level="debug"), stderr=writer
        )
        os.close(writer)
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(reader, 1)
        if dead:
            os.close(reader)
        try:
            with httpx.Client(base_url=json.loads(line)["url"], timeout=10) as http:
                talk = Talk(http, "s1")
                for _ in range(1000):
                    talk.respond(talk.prompt())
                assert talk.messages()["total"] == 2000
                if dead:
                    assert metrics(http)["relay_log_lines_dropped"] > 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
        finally:
            process.kill()
            process.wait()
            if not dead:
                os.close(reader)
