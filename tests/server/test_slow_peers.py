"""Peers that take their time: cut when they hold a connection for nothing, left alone when they wait for us.

The time-outs are short here, and the peers send a byte now and then: activity alone must not save them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2 as httpx
import pytest

from relay.config import Settings
from relay.server.peers import LEAVE_SECONDS, SWEEP_SECONDS
from tests.protocol.talk import Talk, wait_until
from tests.serving import DOORS, Server, running

HEADER_SECONDS = 1.0
BODY_SECONDS = 1.5
SEND_SECONDS = 1.0
LATE_SECONDS = 1.0
"""Two looks of the sweep, a quarter of the shortest time-out apart, and a slow machine."""

HEAD = b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: "
PING = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A relay with short time-outs."""
    with running(
        header_timeout_seconds=HEADER_SECONDS, body_timeout_seconds=BODY_SECONDS, send_timeout_seconds=SEND_SECONDS
    ) as server:
        yield server


@contextlib.contextmanager
def dial(server: Server) -> Iterator[socket.socket]:
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        yield connection


@dataclass
class Cut:
    """How a peer that trickled was sent away."""

    seconds: float
    answer: bytes

    @property
    def json(self) -> dict[str, str]:
        head, _, body = self.answer.partition(b"\r\n\r\n")
        assert b"\r\ncontent-type: application/json\r\n" in head
        assert b"\r\nconnection: close" in head
        return dict(json.loads(body))


async def trickle(server: Server, beginning: bytes, byte: bytes = b"x", every: float = 0.2) -> Cut:
    """Send the beginning, then a byte now and then until the server hangs up."""
    address = httpx.URL(server.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    began = time.monotonic()

    async def send() -> None:
        writer.write(beginning)
        while True:
            await asyncio.sleep(every)
            writer.write(byte)

    sending = asyncio.create_task(send())
    answer = b""
    try:
        while piece := await reader.read(65_536):
            answer += piece
    except ConnectionResetError:
        pass  # what came before it was seen
    finally:
        sending.cancel()
        writer.close()
    return Cut(time.monotonic() - began, answer)


def read_answer(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received or not received.endswith((b"}", b"]")):
        received += connection.recv(65_536) or pytest.fail(f"the server has hung up after {received!r}")
    return received


async def test_a_head_that_does_not_end_is_408(hasty: Server) -> None:
    cut = await trickle(hasty, HALF_HEAD)
    assert cut.answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert cut.json == {
        "error": "Request timeout",
        "details": "the head takes longer than 1 s",
        "code": "request_timeout",
    }
    assert HEADER_SECONDS <= cut.seconds < HEADER_SECONDS + LATE_SECONDS


@pytest.mark.parametrize("door", DOORS)
async def test_a_body_that_does_not_end_is_408_through_both_doors_and_stores_nothing(door: str) -> None:
    with running(door, body_timeout_seconds=0.5) as server, httpx.Client(base_url=server.url) as http:
        for beginning in (HEAD, HEAD + b'{"session_id":"s1","prompt":"Hello"}'):
            cut = await trickle(server, beginning, b" ")
            assert cut.answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert cut.json == {
                "error": "Request timeout",
                "details": "the body takes longer than 0.5 s",
                "code": "request_timeout",
            }
            assert 0.5 <= cut.seconds < 0.5 + LEAVE_SECONDS + LATE_SECONDS
        assert http.get("/messages/s1").status_code == 404
        assert 'relay_errors_total{code="request_timeout"} 2.0' in http.get("/metrics").text
        assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.parametrize("door", DOORS)
def test_who_sends_on_while_the_408_comes_is_not_reset(door: str) -> None:
    with (
        running(door, body_timeout_seconds=0.5) as server,
        httpx.Client(base_url=server.url) as http,
        dial(server) as slow,
    ):
        slow.sendall(HEAD)
        assert read_answer(slow).startswith(b"HTTP/1.1 408 ")
        for _ in range(3):
            http.get("/livez")  # the server has had a turn, in which it could have hung up
            slow.sendall(b" ")


async def test_chunks_that_do_not_end_are_408(hasty: Server) -> None:
    cut = await trickle(hasty, HEAD.replace(b"Content-Length: 500", b"Transfer-Encoding: chunked"), b"1\r\nx\r\n")
    assert cut.answer.startswith(b"HTTP/1.1 408 ")
    assert cut.seconds < BODY_SECONDS + LATE_SECONDS


async def test_the_rest_of_a_body_that_was_refused_is_not_waited_for_for_ever(hasty: Server) -> None:
    cut = await trickle(hasty, HEAD.replace(b"/prompt", b"/nowhere"))
    assert cut.answer.startswith(b"HTTP/1.1 404 ")
    assert cut.answer.count(b"HTTP/1.1") == 1, "no second answer to the same request"
    assert cut.seconds < BODY_SECONDS + LATE_SECONDS


@pytest.mark.parametrize("byte", [b"", b"\r\n"], ids=["silent", "empty lines"])
async def test_a_connection_without_a_request_is_closed(hasty: Server, byte: bytes) -> None:
    cut = await trickle(hasty, b"", byte)
    assert cut.answer == b"" if not byte else cut.answer.startswith(b"HTTP/1.1 408 ")
    assert cut.seconds < HEADER_SECONDS + LATE_SECONDS


async def test_a_head_behind_a_good_request_has_its_own_time(hasty: Server) -> None:
    cut = await trickle(hasty, PING + HALF_HEAD)
    assert re.findall(rb"HTTP/1\.1 (\d+)", cut.answer) == [b"200", b"408"]
    assert cut.seconds < HEADER_SECONDS + LATE_SECONDS


def test_a_poll_longer_than_every_time_out_is_not_cut(hasty: Server) -> None:
    with httpx.Client(base_url=hasty.url) as http, dial(hasty) as poll, dial(hasty) as pipelined:
        Talk(http, "long").round_trip()
        request = b"GET /prompts/long?timeout=3 HTTP/1.1\r\nHost: x\r\n\r\n"
        poll.sendall(request)
        # Behind a poll, neither a head nor a body can be hurried: it is we who do not read.
        pipelined.sendall(request + HEAD)
        assert read_answer(poll).endswith(b"\r\n\r\n[]")
        assert read_answer(pipelined).endswith(b"\r\n\r\n[]")
        poll.sendall(PING)
        assert read_answer(poll).startswith(b"HTTP/1.1 200 ")
        assert read_answer(pipelined).startswith(b"HTTP/1.1 408 ")


def test_a_connection_is_kept_between_requests(hasty: Server) -> None:
    began = time.monotonic()
    with dial(hasty) as connection, dial(hasty) as witness:
        connection.sendall(PING)
        read_answer(connection)
        witness.sendall(HALF_HEAD)
        assert witness.recv(12) == b"HTTP/1.1 408"  # so much for anybody who is in the middle of a request
        assert time.monotonic() - began > HEADER_SECONDS
        connection.sendall(PING)
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


async def test_an_upload_that_trickles_but_ends_in_time_is_served(hasty: Server) -> None:
    address = httpx.URL(hasty.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    body = json.dumps({"session_id": "slow", "prompt": "Hello"}).encode().ljust(500)
    for start in range(0, 500, 50):
        writer.write(HEAD[start:] if start == 0 else b"")
        writer.write(body[start : start + 50])
        await asyncio.sleep(BODY_SECONDS / 20)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


def test_a_caller_who_reads_nothing_is_cut_and_one_who_reads_slowly_is_not(hasty: Server) -> None:
    with httpx.Client(base_url=hasty.url, timeout=20) as http, dial(hasty) as idle, dial(hasty) as slow:
        for _ in range(150):
            http.post("/prompt", json={"session_id": "big", "prompt": "x" * 131_072}).raise_for_status()
        before = open_connections(http)
        for connection in (idle, slow):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            connection.sendall(b"GET /prompts/big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        with ThreadPoolExecutor(1) as pool:
            gone = pool.submit(wait_until, lambda: open_connections(http) == before - 1)
            while not gone.done():
                received += slow.recv(4_096)
                time.sleep(0.005)  # a slow line
        gone.result()
        received += b"".join(iter(lambda: slow.recv(1024**2), b""))
        assert len(json.loads(received.partition(b"\r\n\r\n")[2])) == 150
        with contextlib.suppress(ConnectionResetError):
            assert len(b"".join(iter(lambda: idle.recv(1024**2), b""))) < 150 * 131_072


def open_connections(http: httpx.Client) -> int:
    """How many connections the server says it has."""
    line = next(line for line in http.get("/metrics").text.splitlines() if line.startswith("relay_open_connections "))
    return int(float(line.split()[1]))


async def test_1000_slow_peers_are_all_cut_in_time_and_harm_nobody() -> None:
    """500 half-open heads and 500 trickled bodies, while others are served as if nothing was."""
    header_seconds, body_seconds, late = 2.0, 3.0, 2.0
    short = running(header_timeout_seconds=header_seconds, body_timeout_seconds=body_seconds)
    with short as server, ThreadPoolExecutor(1) as pool:
        stop = asyncio.Event()
        healthy = pool.submit(measure_health, server, stop)
        heads, bodies = await asyncio.gather(
            asyncio.gather(*(trickle(server, HALF_HEAD, every=0.5) for _ in range(500))),
            asyncio.gather(*(trickle(server, HEAD, every=0.5) for _ in range(500))),
        )
        stop.set()
        times = await asyncio.wrap_future(healthy)
        assert {cut.answer[:12] for cut in (*heads, *bodies)} == {b"HTTP/1.1 408"}
        assert max(cut.seconds for cut in heads) < header_seconds + late
        assert max(cut.seconds for cut in bodies) < body_seconds + late
        assert len(times) > 100
        assert statistics.quantiles(times, n=100)[98] < 0.1


def measure_health(server: Server, stop: asyncio.Event) -> list[float]:
    times = []
    with httpx.Client(base_url=server.url) as http:
        while not stop.is_set():
            began = time.monotonic()
            assert http.get("/healthz").status_code == 200
            times.append(time.monotonic() - began)
            time.sleep(0.005)
    return times


def test_by_default_a_half_sent_request_is_cut_within_35_seconds() -> None:
    settings = Settings.model_construct()
    both = settings.header_timeout_seconds + settings.body_timeout_seconds  # a slow head, and then a slow body
    assert both + 4 * SWEEP_SECONDS <= 35
