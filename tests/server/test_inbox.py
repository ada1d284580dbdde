"""server/inbox.py: what is read in a turn is served when all of it is read, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fuzz.speak_websocket import Connection
from relay.core.waiter import Waits
from relay.server.fastdoor import FastDoor
from relay.server.http import LAST_RANK
from relay.server.inbox import MAX_REQUESTS, Inbox
from relay.server.outbox import Outbox
from tests.server.doors import doors
from tests.server.test_outbox import Noted, post

POLL = b"GET /prompts/s1 HTTP/1.1\r\nHost: x\r\n\r\n"
PENDING = b"GET /prompts/s1?wait=false HTTP/1.1\r\nHost: x\r\n\r\n"


def prompt(client_msg_id: str) -> bytes:
    return post("/prompt", session_id="s1", client_msg_id=client_msg_id, prompt="x")


def answer(client_msg_id: str) -> bytes:
    return post("/response", session_id="s1", client_msg_id=client_msg_id, text="x")


Pair = tuple[FastDoor, Connection]


async def say(pair: Pair, data: bytes) -> bytes:
    """What is answered to that alone."""
    door, connection = pair
    connection.written = b""
    door.data_received(data)
    await asyncio.sleep(0)
    return connection.written


@asynccontextmanager
async def acquainted(count: int) -> AsyncIterator[list[Pair]]:
    """Connections whose requests go through the inbox, as their heads are known; "p0" is answered, and "p1" is not."""
    async with doors(count) as pairs:
        for pair in pairs:
            for data in (prompt("p0"), answer("p0"), prompt("p1"), PENDING, POLL):
                assert (await say(pair, data)).startswith(b"HTTP/1.1 200 ")
        for _, connection in pairs:
            connection.written = b""
        yield pairs


async def test_nothing_is_served_before_everything_is_read() -> None:
    async with acquainted(2) as [(first, one), (second, other)]:
        first.data_received(prompt("p2"))
        second.data_received(b"GET /sessions/s1 HTTP/1.1\r\nHost: x\r\n\r\n")  # not known yet: answered as it is read
        await asyncio.sleep(0)
        assert b'"pending":1' in other.written
        assert one.written.startswith(b"HTTP/1.1 200 ")
        assert b'"p2"' in await say((second, other), PENDING)


async def test_answers_are_served_first_then_prompts_then_polls() -> None:
    async with acquainted(3) as [(agent, polling), (client, _), (runner, answering)]:
        agent.data_received(POLL)
        client.data_received(prompt("p2"))
        runner.data_received(answer("p1"))
        await asyncio.sleep(0)
        assert answering.written.startswith(b"HTTP/1.1 200 ")
        assert polling.written.count(b'"client_msg_id"') == 1
        assert b'"p2"' in polling.written
        # It need not have waited, though it was read first.
        assert b'relay_poll_wakeups_total{cause="prompt"} 0.0' in agent._door.telemetry.exposition()


async def test_requests_of_one_connection_are_served_in_their_order() -> None:
    async with acquainted(1) as [(door, connection)]:
        door.data_received(PENDING)
        door.data_received(answer("p1"))
        door.data_received(PENDING)
        await asyncio.sleep(0)
        before, taken, after = connection.written.split(b"HTTP/1.1 200 ")[1:]
        assert b'"p1"' in before
        assert b'"ok":true' in taken
        assert after.endswith(b"[]")


async def test_what_the_parser_must_read_is_served_behind_what_came_before_it() -> None:
    async with acquainted(1) as [(door, connection)]:
        door.data_received(answer("p1"))
        door.data_received(PENDING + PENDING)
        await asyncio.sleep(0)
        assert connection.written.count(b"HTTP/1.1 200 ") == 3
        assert connection.written.count(b"[]") == 2


async def test_a_prompt_is_kept_though_its_caller_has_gone_before_it_was_served() -> None:
    async with acquainted(2) as [(door, connection), other]:
        door.data_received(prompt("p2"))
        connection.closing = True
        door.connection_lost(None)
        assert connection.written == b""
        assert b'"p2"' in await say(other, PENDING)


async def test_a_poll_whose_caller_has_gone_before_it_was_served_does_not_wait() -> None:
    async with acquainted(2) as [(door, connection), other]:
        await say(other, answer("p1"))
        door.data_received(POLL)
        connection.closing = True
        door.connection_lost(None)
        await asyncio.sleep(0)
        assert b'"waiting_agents":0' in await say(other, b"GET /sessions/s1 HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_what_was_read_is_answered_before_the_connection_is_closed_for_a_stop() -> None:
    async with acquainted(1) as [(door, connection)]:
        door.data_received(prompt("p2"))
        door.shutdown()
        assert connection.written.startswith(b"HTTP/1.1 200 ")
        assert connection.closing


class Reading:
    """A connection that notes when its request is served."""

    def __init__(self, notes: list[str], name: str, error: BaseException | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        connection = Connection(self.loop)
        connection.protocol = asyncio.Protocol()
        self.transport: asyncio.Transport = connection
        self._notes = notes
        self._name = name
        self._error = error

    def serve(self) -> None:
        self._notes.append(self._name)
        if self._error is not None:
            raise self._error


class Desk:
    """An inbox, and what becomes of the things in it."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.complaints: list[Exception] = []
        self.waits = Waits()
        self.outbox = Outbox(self.complaints.append)
        self.inbox = Inbox(self.waits, self.outbox, self.complaints.append)

    def add(self, name: str, rank: int = 0, error: BaseException | None = None) -> Reading:
        reader = Reading(self.notes, name, error)
        self.inbox.add(reader, rank)
        return reader


async def test_the_lowest_rank_is_served_first_and_each_in_the_order_of_reading() -> None:
    desk = Desk()
    for name, rank in (("d", LAST_RANK), ("c", 1), ("a", 0), ("e", LAST_RANK), ("b", 0)):
        desk.add(name, rank)
    assert not desk.notes
    await asyncio.sleep(0)
    assert desk.notes == ["a", "b", "c", "d", "e"]


async def test_polls_that_were_woken_go_on_before_anything_is_written() -> None:
    desk = Desk()
    reader = desk.add("served")

    def serve() -> None:
        desk.outbox.add_asked(Noted(desk.notes, "written"))
        desk.waits.resume(lambda: desk.notes.append("gone on"))

    reader.serve = serve  # type: ignore[method-assign]
    await asyncio.sleep(0)
    assert desk.notes == ["gone on", "written"]


async def test_all_that_is_to_be_done_in_a_turn_is_one_callback_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    loop = asyncio.get_running_loop()
    callbacks: list[Callable[[], object]] = []
    monkeypatch.setattr(loop, "call_soon", callbacks.append)
    for name in ("first", "second"):
        reader = desk.add(name)
    monkeypatch.setattr(reader, "serve", lambda: desk.waits.resume(answer_poll))

    def answer_poll() -> None:
        desk.outbox.add_waited(Noted(desk.notes, "written"))

    callbacks[0]()
    monkeypatch.undo()
    assert desk.notes == ["first", "written"]
    assert len(callbacks) == 1


async def test_one_that_fails_is_told_of_and_cut_and_keeps_no_other_from_being_served() -> None:
    desk = Desk()
    broken = desk.add("broken", error=ValueError())
    sound = desk.add("sound")
    await asyncio.sleep(0)
    assert desk.notes == ["broken", "sound"]
    assert [type(complaint) for complaint in desk.complaints] == [ValueError]
    assert broken.transport.is_closing()
    assert not sound.transport.is_closing()


async def test_what_is_to_be_written_is_written_whatever_has_gone_wrong() -> None:
    desk = Desk()
    desk.add("broken", error=KeyboardInterrupt())
    desk.outbox.add_asked(Noted(desk.notes, "written"))
    with pytest.raises(KeyboardInterrupt):
        desk.inbox.serve_all()
    assert desk.notes == ["broken", "written"]
    desk.outbox.add_asked(Noted(desk.notes, "later"))
    await asyncio.sleep(0)
    assert desk.notes[-1] == "later"


async def test_many_of_a_kind_do_not_wait_for_the_end_of_reading() -> None:
    desk = Desk()
    for number in range(MAX_REQUESTS - 1):
        desk.add(str(number))
    assert not desk.notes
    desk.add("last")
    assert len(desk.notes) == MAX_REQUESTS
    desk.add("one more")
    assert len(desk.notes) == MAX_REQUESTS
    await asyncio.sleep(0)
    assert desk.notes[-1] == "one more"


async def test_an_inbox_that_was_emptied_early_is_served_again() -> None:
    desk = Desk()
    for name in ("first", "second"):
        desk.add(name)
        desk.inbox.serve_all()
        assert desk.notes[-1] == name
    await asyncio.sleep(0)
    desk.add("third")
    await asyncio.sleep(0)
    assert desk.notes == ["first", "second", "third"]
