"""A flood slows nobody else by more than half, and leaves nothing behind."""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import psutil
import pytest
from websockets.sync.client import ClientConnection

from tests.protocol.talk import Address, Talk, next_message, wait_until
from tests.server.tokens import ADMIN, bearer
from tests.serving import ROOT, Server, running

CONNECTIONS = 64
FLOODER = "client-token-that-floods-the-relay"
OTHERS = [f"admin-token-{n}-that-is-not-a-flood" for n in range(20)]
"""Enough for as many round trips as there are: each stays below the limit of its own."""
SECONDS = 1.2
"""A refusal is answered a second later, and so the flood comes in waves: a shorter look may fall between two."""
ATTEMPTS = 3
"""The machine has other things to do as well; a flood that really slows others does so every time."""


SETTINGS = {"client_token": FLOODER, "admin_token": ",".join([ADMIN, *OTHERS]), "max_pending_per_session": 200}


@pytest.fixture(scope="module")
def relay() -> Iterator[Server]:
    with running("serve", **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def spared() -> Iterator[Server]:
    """One that nobody floods: the machine may have become slower since the beginning, and so would this one."""
    with running("serve", **SETTINGS) as server:
        yield server


@contextmanager
def flooding(server: Server, token: str | None) -> Iterator[None]:
    """For the length of the block every connection of the flood asks as fast as it can."""
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "tests.server.flood", port, str(CONNECTIONS), *([token] if token else [])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "flooding\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


_tokens = itertools.cycle(OTHERS)


def round_trip_seconds(http: httpx.Client, listener: ClientConnection, seconds: float = SECONDS) -> float:
    """The mean over so long, for it has the waves in it: asked, fetched, answered, heard."""
    taken: list[float] = []
    while sum(taken) < seconds:
        http.headers.update(bearer(next(_tokens)))
        began = time.perf_counter()
        talk = Talk(http, "quiet")
        client_msg_id = talk.prompt()
        assert talk.pending(wait="true")[0]["client_msg_id"] == client_msg_id
        assistant_msg_id = talk.respond(client_msg_id)
        assert next_message(listener)["assistant_msg_id"] == assistant_msg_id
        taken.append(time.perf_counter() - began)
    return statistics.fmean(taken)


def connections(server: Server) -> int:
    return len(psutil.Process(server.process.pid).net_connections("tcp"))


def refusals(http: httpx.Client) -> float:
    """How many requests were refused so far, for being too many or for their token."""
    found = re.findall(r'relay_errors_total\{code="(?!prompt|session)\w+"\} (\S+)', http.get("/metrics").text)
    return sum(map(float, found))


@pytest.mark.parametrize("token", [FLOODER, "a-token-that-nobody-has-given", None], ids=["valid", "bad", "none"])
def test_a_flood(relay: Server, spared: Server, token: str | None) -> None:
    at, beside = Address(relay.url, ADMIN), Address(spared.url, ADMIN)
    with at.client() as http, at.connect("/ws/quiet") as listener:
        round_trip_seconds(http, listener, 0.3)  # what is new is slow
        memory, open_before = relay.memory_bytes(), connections(relay)
        slower: list[float] = []
        while len(slower) < ATTEMPTS and (not slower or min(slower) > 1.5):
            before = round_trip_seconds(http, listener, 0.5)
            with flooding(relay, token):
                refused = refusals(http)
                during = round_trip_seconds(http, listener)
                assert refusals(http) - refused >= CONNECTIONS / 2, "there was no flood"
            slower.append(during / before)
            wait_until(lambda: connections(relay) == open_before)
        assert min(slower) <= 1.5, f"slowed to {slower} times"
        with beside.client() as other_http, beside.connect("/ws/quiet") as other_listener:
            round_trip_seconds(other_http, other_listener, 0.3)
            still: list[float] = []
            while len(still) < ATTEMPTS and (not still or min(still) > 1.5):
                other = round_trip_seconds(other_http, other_listener, 0.5)
                still.append(round_trip_seconds(http, listener, 0.5) / other)
        assert min(still) <= 1.5, f"still slow: {still} times"
    assert relay.memory_bytes() - memory < 16 * 1024**2
