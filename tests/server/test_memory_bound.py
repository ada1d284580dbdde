"""A hostile client that fills everything takes no more memory than RELAY_STORE_MAX_BYTES, and a little."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import httpx2 as httpx

from tests.protocol.talk import Address, Talk, ok
from tests.serving import Server, running

BOUND = 16 * 1024**2
OVERHEAD = 8 * 1024**2
"""What the process takes beside the store: connections, buffers, what the allocator does not give back."""
BATCH = 100
ROUNDS = 2
"""In the second one memory is in pieces already."""
SMILE = "\U0001f600"
"""Four bytes in UTF-8, and four for each character of a string that holds it."""


def hostile() -> Iterator[tuple[str, dict[str, object]]]:
    """Requests that cost a store the most for what they say: many sessions, long ids, tiny messages, many answers."""
    for n in itertools.count():
        session_id = f"{SMILE * 90}{n // 8}" if n % 2 else f"s{n // 64}"
        client_msg_id = f"{n}" if n % 3 else f"{SMILE * 90}{n}"
        prompt: dict[str, object] = {"session_id": session_id, "client_msg_id": client_msg_id, "prompt": ""}
        if n % 5 == 0:
            prompt["metadata"] = {"k": [""] * (n % 500)}
        yield "/prompt", prompt
        for m in range(n % 3):
            answer_id = f"{m}-{SMILE * 90}{n}" if m else f"{n}"
            yield (
                "/response",
                {"session_id": session_id, "client_msg_id": client_msg_id, "text": "", "assistant_msg_id": answer_id},
            )


class Pipeline:
    """One connection, many requests at a time."""

    def __init__(self, server: Server) -> None:
        self._connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)
        self._answers = self._connection.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._connection.close()

    def statuses(self, requests: list[tuple[str, str, bytes]]) -> list[int]:
        """Send them all, then read all answers."""
        head = "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
        self._connection.sendall(
            b"".join(head.format(method, path, len(body)).encode() + body for method, path, body in requests)
        )
        return [self._status() for _ in requests]

    def _status(self) -> int:
        status = length = 0
        while (line := self._answers.readline()) != b"\r\n":
            assert line, "the server has hung up"
            if line.startswith(b"HTTP/1.1"):
                status = int(line.split()[1])
            elif line.startswith(b"content-length:"):
                length = int(line.split()[1])
        self._answers.read(length)
        return status


def fill(pipeline: Pipeline) -> int:
    """Send until the store is full; returns how many messages were kept."""
    kept = 0
    requests = hostile()
    while True:
        batch = [
            ("POST", path, json.dumps(body, ensure_ascii=False).encode())
            for path, body in itertools.islice(requests, BATCH)
        ]
        statuses = pipeline.statuses(batch)
        assert set(statuses) <= {200, 404, 503}
        kept += statuses.count(200)
        if statuses[-10:].count(200) == 0:  # a small one may still fit where a large one does not
            return kept


def empty(pipeline: Pipeline, http: httpx.Client) -> None:
    """Delete every session."""
    while sessions := ok(http.get("/sessions?limit=100"))["sessions"]:
        deleted = [("DELETE", f"/sessions/{quote(session['session_id'])}", b"") for session in sessions]
        assert set(pipeline.statuses(deleted)) == {200}


def test_a_full_store_stays_within_its_bound() -> None:
    settings = {"store_max_bytes": BOUND, "max_sessions": 1_000_000}
    with (
        running("serve", **settings) as server,
        Address(server.url).client() as http,
        closing(Pipeline(server)) as pipeline,
    ):
        for _ in range(20):
            Talk(http, "warm up").round_trip()
        before = server.memory_bytes()
        for _ in range(ROUNDS):
            kept = fill(pipeline)
            assert kept > 5_000
            grown = server.memory_bytes() - before
            assert grown < BOUND + OVERHEAD, f"{grown / BOUND:.2f} of the bound for {kept} messages"
            assert Talk(http, "one more").post_prompt("x" * 2000).json()["code"] == "store_full"
            empty(pipeline, http)
        Talk(http, "one more").round_trip()
