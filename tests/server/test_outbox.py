"""server/outbox.py and server/serving.py: when answers are written, and that their order is that of the requests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from fuzz.speak_websocket import HANDSHAKE, Connection
from relay.server.fastdoor import FastDoor
from relay.server.http import PIECE_BYTES
from relay.server.lookout import Lookout
from relay.server.outbox import SOCKETS_PER_TURN, Outbox
from tests.server.doors import doors

ASK = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def post(path: str, **fields: str) -> bytes:
    body = json.dumps(fields)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def ask_at_once(pairs: Sequence[tuple[FastDoor, Connection]]) -> None:
    """A request on each connection, in one turn of the loop."""
    for door, _ in pairs:
        door.data_received(ASK)
    await asyncio.sleep(0)


async def test_requests_of_one_turn_are_all_served_before_any_answer_is_written() -> None:
    async with doors(3) as pairs:
        for door, _ in pairs:
            door.data_received(ASK)
            assert not any(connection.written for _, connection in pairs)
        await asyncio.sleep(0)
        assert all(connection.written.startswith(b"HTTP/1.1 200 ") for _, connection in pairs)


async def test_a_poll_gets_its_answer_before_the_prompt_that_has_woken_it() -> None:
    order: list[str] = []
    async with doors(2) as [(client, asking), (agent, polling)]:
        client.data_received(post("/prompt", session_id="s1", client_msg_id="c1", prompt="x"))
        client.data_received(post("/response", session_id="s1", client_msg_id="c1", text="x"))
        await asyncio.sleep(0)
        agent.data_received(b"GET /prompts/s1 HTTP/1.1\r\nHost: x\r\n\r\n")
        for connection, name in ((asking, "prompt"), (polling, "poll")):
            connection.write = lambda _, name=name: order.append(name)  # type: ignore[method-assign,misc]
        client.data_received(post("/prompt", session_id="s1", prompt="y"))
        await asyncio.sleep(0)
    assert order == ["poll", "prompt"]


async def test_only_a_few_answers_at_once_keep_the_loop_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Lookout, "answered", lambda _, answers: looks.append(answers))
    async with doors(3) as pairs:
        for asking in (1, 2, 3):
            await ask_at_once(pairs[:asking])
        assert looks == [1, 2]


async def test_the_loop_stays_awake_if_the_lookout_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(Lookout, "answered", lambda _, answers: answers == 1)
    monkeypatch.setattr(Lookout, "look", lambda _, call_soon: looks.append(call_soon))
    async with doors(2) as pairs:
        for asking in (1, 2, 1):
            await ask_at_once(pairs[:asking])
        assert looks == [asyncio.get_running_loop().call_soon] * 2


async def test_a_poll_that_has_waited_counts_as_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Lookout, "answered", lambda _, answers: looks.append(answers))
    async with doors(2) as [(client, _), (agent, _)]:
        client.data_received(post("/prompt", session_id="s1", client_msg_id="c1", prompt="x"))
        client.data_received(post("/response", session_id="s1", client_msg_id="c1", text="x"))
        await asyncio.sleep(0)
        agent.data_received(b"GET /prompts/s1 HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0)
        client.data_received(post("/prompt", session_id="s1", prompt="y"))
        await asyncio.sleep(0)
        assert looks == [1, 2]


async def test_what_was_answered_is_written_before_a_refusal_an_upgrade_and_a_stop() -> None:
    async with doors(3) as [refused, upgraded, stopped]:
        refused[0].data_received(ASK + b"\x00")
        upgraded[0].data_received(ASK + HANDSHAKE)
        stopped[0].data_received(ASK)
        stopped[0].shutdown()
        for _ in range(20):
            await asyncio.sleep(0)
        for (_, connection), second in ((refused, b"HTTP/1.1 400 "), (upgraded, b"HTTP/1.1 101 ")):
            assert connection.written.startswith(b"HTTP/1.1 200 ")
            assert connection.written.find(second) > 0
        assert stopped[1].written.startswith(b"HTTP/1.1 200 ")
        assert stopped[1].closing


class Broken(Connection):
    """One to which nothing can be written any more."""

    def write(self, data: Any) -> None:
        raise RuntimeError


async def test_one_that_cannot_be_written_to_is_told_of_and_keeps_no_other_from_its_answer() -> None:
    async with doors(2) as [broken, sound]:
        broken[0].transport = Broken(asyncio.get_running_loop())
        for door, _ in (broken, sound):
            door.data_received(ASK)
        await asyncio.sleep(0)
        assert sound[1].written.startswith(b"HTTP/1.1 200 ")
        assert b'relay_errors_total{code="internal"} 1.0' in sound[0]._door.telemetry.exposition()


async def test_an_answer_is_written_before_a_request_behind_it_is_given_to_the_asgi_path() -> None:
    """Which writes, and closes, by itself."""
    async with doors(1) as [(door, connection)]:
        door.data_received(ASK + ASK[:-2] + b"Connection: close\r\n\r\n")
        assert connection.written.count(b"HTTP/1.1 200 ") == 1
        while not connection.closing:
            await asyncio.sleep(0)
        assert connection.written.count(b"HTTP/1.1 200 ") == 2


class Noted:
    """A connection that notes when it is written to."""

    def __init__(self, notes: list[str], name: str) -> None:
        self._notes = notes
        self._name = name

    def write_now(self) -> None:
        self._notes.append(self._name)


async def test_answers_wait_for_no_more_than_some_of_many_sockets() -> None:
    notes: list[str] = []
    outbox = Outbox(lambda error: pytest.fail(repr(error)))
    for _ in range(2 * SOCKETS_PER_TURN):
        outbox.add_socket(Noted(notes, "socket"))
    outbox.add_asked(Noted(notes, "asked"))
    outbox.add_waited(Noted(notes, "waited"))
    await asyncio.sleep(0)
    assert notes == ["waited", *["socket"] * SOCKETS_PER_TURN, "asked"]
    notes.clear()
    outbox.add_asked(Noted(notes, "asked"))
    await asyncio.sleep(0)
    assert notes == [*["socket"] * SOCKETS_PER_TURN, "asked"]


async def test_an_answer_for_a_peer_that_has_gone_is_dropped() -> None:
    async with doors(1) as [(door, connection)]:
        door.data_received(ASK)
        connection.abort()
        await asyncio.sleep(0)
        assert connection.written == b""


async def test_much_that_is_asked_in_one_piece_does_not_pile_up() -> None:
    async with doors(1) as [(door, connection)]:
        door.data_received(ASK * 1000)
        assert len(connection.written) > PIECE_BYTES  # in time for the peer to be seen not to read
        await asyncio.sleep(0)
        assert connection.written.count(b"HTTP/1.1 200 ") == 1000


@pytest.mark.parametrize("cut", [None, -2], ids=["in one piece", "in two pieces"])
async def test_a_head_that_is_too_large_is_431_behind_another_request_too(cut: int | None) -> None:
    large = ASK[:-2] + b"A: " + b"b" * 65_536 + b"\r\n\r\n"
    async with doors(1) as [(door, connection)]:
        door.data_received(ASK + large[:cut])
        if cut is not None:
            door.data_received(large[cut:])
        assert re.findall(rb"HTTP/1.1 (\d+)", connection.written) == [b"200", b"431"]
