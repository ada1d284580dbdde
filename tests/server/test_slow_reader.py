"""A client that stops reading harms nobody else, costs bounded memory, and loses nothing if it reads again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import httpx2 as httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.serving import DOORS, Server, running

ANSWERS = 500
ANSWER_BYTES = 100_000
SUBSCRIBERS = 50
# The history of 500 answers itself, the queues (1 MiB each, shared frames) and the sockets' buffers.
MEMORY_BOUND_BYTES = ANSWERS * ANSWER_BYTES + 100 * 1024**2


async def collect(client: ClientConnection, count: int) -> list[str]:
    ids: list[str] = []
    while len(ids) < count:
        frame = json.loads(await client.recv())
        if frame["type"] == "message":
            ids.append(frame["data"]["assistant_msg_id"])
    return ids


async def post_answers(server: Server, count: int, slowest: list[float]) -> list[str]:
    ids = [f"answer-{n}" for n in range(count)]
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
        for assistant_msg_id in ids:
            body = {
                "session_id": "s1",
                "client_msg_id": "p1",
                "assistant_msg_id": assistant_msg_id,
                "text": "x" * ANSWER_BYTES,
            }
            began = time.monotonic()
            (await http.post("/response", json=body)).raise_for_status()
            slowest[0] = max(slowest[0], time.monotonic() - began)
    return ids


async def ask(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        body = {"session_id": "s1", "client_msg_id": "p1", "prompt": "x"}
        (await http.post("/prompt", json=body)).raise_for_status()


def subscribe(server: Server) -> connect:
    # Nothing is read ahead: what the client does not ask for stays in the kernel, and then with the server.
    return connect(f"{server.ws_url}/ws/s1", max_size=None, max_queue=1, compression=None, ping_interval=None)


@pytest.mark.parametrize("door", DOORS)
async def test_the_others_get_all_at_speed_and_the_slow_one_gets_every_answer_it_missed(door: str) -> None:
    with running(door, send_timeout_seconds=60) as server:
        await ask(server)
        clients = [await subscribe(server) for _ in range(SUBSCRIBERS)]
        slow, others = clients[0], clients[1:]
        before = server.memory_bytes()
        slowest = [0.0]
        ids, *received = await asyncio.gather(
            post_answers(server, ANSWERS, slowest), *(collect(client, ANSWERS) for client in others)
        )
        assert received == [ids] * (SUBSCRIBERS - 1)
        assert server.memory_bytes() - before < MEMORY_BOUND_BYTES
        assert slowest[0] < 5, "a post waited for a client"
        assert await collect(slow, ANSWERS) == ids
        for client in clients:
            await client.close()


@pytest.mark.parametrize("door", DOORS)
async def test_a_write_that_stalls_for_too_long_closes_the_socket_with_4008(door: str) -> None:
    with running(door, send_timeout_seconds=0.5) as server:
        await ask(server)
        async with subscribe(server) as slow, subscribe(server) as other:
            ids, received = await asyncio.gather(post_answers(server, 100, [0.0]), collect(other, 100))
            assert received == ids
            await asyncio.to_thread(server.wait_for_line, "client_disconnected.*4008|4008.*client_disconnected")
            got: list[str] = []
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    got += await collect(slow, 1)
            assert got == ids[: len(got)], "what did come came in order"
            assert len(got) < len(ids)
            if door == "serve":  # any other ASGI server may only be able to hang up
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4008


async def test_a_client_that_falls_behind_the_history_is_told_so() -> None:
    with running(history_max_bytes=2 * 1024**2, history="true") as server:
        await ask(server)
        async with subscribe(server) as slow:
            await post_answers(server, 200, [0.0])
            with pytest.raises(ConnectionClosed) as closed:
                await collect(slow, 200)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4008, "fell behind the history")


def handshake(server: Server, session_id: str) -> socket.socket:
    """A client that will never read."""
    connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=10)
    connection.sendall(
        f"GET /ws/{session_id} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    return connection


async def test_a_stalled_client_of_a_deleted_session_is_ended_too() -> None:
    with running("serve", send_timeout_seconds=0.5) as server:
        await ask(server)
        with handshake(server, "s1"):
            await asyncio.to_thread(server.wait_for_line, "client_connected")
            await post_answers(server, 100, [0.0])
            async with httpx.AsyncClient(base_url=server.url) as http:
                (await http.delete("/sessions/s1")).raise_for_status()
            await asyncio.to_thread(server.wait_for_line, "client_disconnected")


async def test_a_caller_who_does_not_read_its_answer_holds_no_copy_of_it() -> None:
    with running() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        for _ in range(300):
            body = {"session_id": "s1", "prompt": "x" * 131_072}
            http.post("/prompt", json=body).raise_for_status()
        before = server.memory_bytes()
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        callers = [socket.create_connection(address, timeout=10) for _ in range(8)]
        for caller in callers:
            caller.sendall(b"GET /prompts/s1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert caller.recv(12) == b"HTTP/1.1 200"
        assert server.memory_bytes() - before < 40 * 1024**2  # one copy for one caller would be 39 MB, for eight 315
        assert len(http.get("/prompts/s1").json()) == 300
        for caller in callers:
            caller.close()


async def test_a_flood_of_tiny_frames_neither_starves_the_others_nor_piles_up() -> None:
    with running(max_frames_per_second=1_000_000) as server, httpx.Client(base_url=server.url, timeout=20) as http:
        pong = b"\x81\x8f\x00\x00\x00\x00" + b'{"type":"pong"}'
        ping = b"\x89\x80\x00\x00\x00\x00"
        before = server.memory_bytes()
        for frame in (pong, ping):
            with handshake(server, "s1") as flood:
                flood.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    for _ in range(100):
                        flood.sendall(frame * 3_000)
                for _ in range(5):
                    assert http.get("/healthz").status_code == 200
        assert server.memory_bytes() - before < 100 * 1024**2
