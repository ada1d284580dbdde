"""server/fastfeed.py: what the sweep finds when it looks at a socket, and at which it need not look each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fuzz.speak_websocket import Connection
from relay.server.fastfeed import SILENCE_SECONDS, FastFeed
from relay.server.peers import Peers
from tests.server.doors import doors

UPGRADE = (
    b"GET /ws/s1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
CLOSE = b"\x88\x80\0\0\0\0"
PONG = b"\x8a\x80\0\0\0\0"
PING = b"\x89\0"


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def a_socket() -> AsyncIterator[tuple[FastFeed, Peers, Connection]]:
    async with doors(1) as [(door, connection)]:
        door.data_received(UPGRADE)
        await turns()
        assert connection.written.startswith(b"HTTP/1.1 101 ")
        feed = connection.protocol
        assert isinstance(feed, FastFeed)
        yield feed, feed._hall.peers, connection
        connection.abort()
        await turns()


async def test_a_socket_is_calm_while_its_client_reads() -> None:
    async with a_socket() as (feed, peers, _):
        assert peers.calm == {feed}
        feed.pause_writing()
        assert not peers.calm
        feed.resume_writing()
        assert peers.calm == {feed}


async def test_a_socket_that_was_closed_by_its_client_is_not_calm() -> None:
    async with a_socket() as (feed, peers, _):
        feed.data_received(CLOSE)
        assert not peers.calm


async def test_a_socket_that_is_being_closed_is_not_calm_even_if_its_client_reads_again() -> None:
    async with a_socket() as (feed, peers, _):
        feed.pause_writing()
        feed._leave(1001, "going away")
        feed.resume_writing()
        assert not peers.calm


async def test_a_socket_whose_connection_is_lost_is_not_calm() -> None:
    async with a_socket() as (_, peers, connection):
        connection.abort()
        await turns()
        assert not peers.calm


async def test_a_silent_client_is_asked_and_closed_if_it_does_not_answer() -> None:
    async with a_socket() as (feed, _, connection):
        now, said = feed.loop.time(), len(connection.written)
        feed.look(now + SILENCE_SECONDS - 1)
        assert len(connection.written) == said
        feed.look(now + SILENCE_SECONDS + 1)
        feed.look(now + SILENCE_SECONDS + 2)
        assert connection.written[said:] == PING
        feed.look(now + 2 * SILENCE_SECONDS + 1)
        assert connection.written[said + len(PING) :].startswith(b"\x88")
        assert (1011).to_bytes(2, "big") in connection.written[said:]


async def test_a_silent_client_that_answers_stays() -> None:
    async with a_socket() as (feed, _, connection):
        now, said = feed.loop.time(), len(connection.written)
        feed.look(now + SILENCE_SECONDS + 1)
        feed.data_received(PONG)
        feed.look(now + 2 * SILENCE_SECONDS + 1)
        assert connection.written[said:] == PING + PING


async def test_who_does_not_read_its_answers_gets_no_socket() -> None:
    """The transport has said so, and will not say it again: frames would pile up, and nobody would see it."""
    async with doors(1) as [(door, connection)]:
        door.pause_writing()
        door.data_received(UPGRADE)
        await turns()
        assert connection.written.startswith(b"HTTP/1.1 400 ")
        assert not isinstance(connection.protocol, FastFeed)
