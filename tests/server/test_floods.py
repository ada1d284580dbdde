"""A flood slows nobody else by more than half, and leaves nothing behind."""

from __future__ import annotations

import itertools
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
ROUNDS = 60
ATTEMPTS = 3
"""The machine has other things to do as well; a flood that really slows others does so every time."""


@pytest.fixture(scope="module")
def relay() -> Iterator[Server]:
    settings = {"client_token": FLOODER, "admin_token": ",".join([ADMIN, *OTHERS]), "max_pending_per_session": 200}
    with running("serve", **settings) as server:
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


def round_trip_seconds(http: httpx.Client, listener: ClientConnection) -> float:
    """The median of some: asked, fetched, answered, heard."""
    taken = []
    for _ in range(ROUNDS):
        http.headers.update(bearer(next(_tokens)))
        began = time.perf_counter()
        talk = Talk(http, "quiet")
        client_msg_id = talk.prompt()
        assert talk.pending(wait="true")[0]["client_msg_id"] == client_msg_id
        assistant_msg_id = talk.respond(client_msg_id)
        assert next_message(listener)["assistant_msg_id"] == assistant_msg_id
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def connections(server: Server) -> int:
    return len(psutil.Process(server.process.pid).net_connections("tcp"))


@pytest.mark.parametrize("token", [FLOODER, "a-token-that-nobody-has-given", None], ids=["valid", "bad", "none"])
def test_a_flood(relay: Server, token: str | None) -> None:
    at = Address(relay.url, ADMIN)
    with at.client() as http, at.connect("/ws/quiet") as listener:
        round_trip_seconds(http, listener)  # what is new is slow
        memory, open_before = relay.memory_bytes(), connections(relay)
        slower: list[float] = []
        while len(slower) < ATTEMPTS and (not slower or min(slower) > 1.5):
            before = round_trip_seconds(http, listener)
            with flooding(relay, token):
                assert connections(relay) > open_before
                during = round_trip_seconds(http, listener)
            slower.append(during / before)
            wait_until(lambda: connections(relay) == open_before)
        assert min(slower) <= 1.5, f"slowed to {slower} times"
        after = min(round_trip_seconds(http, listener) for _ in range(ATTEMPTS if slower[-1] > 1.2 else 1))
        assert after / before <= 1.5
    assert relay.memory_bytes() - memory < 16 * 1024**2
