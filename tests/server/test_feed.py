"""server/feed.py: every frame once and in order, whoever sends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message, Send

from relay.core.hub import Hub
from relay.core.observer import Observer
from relay.core.relay import ClientGone, Relay
from relay.core.subscriber import Frame, Subscriber
from relay.server.feed import Feed
from relay.server.outbox import SOCKETS_PER_TURN, Outbox
from relay.store.memory import MemoryStore
from tests.factories import GENEROUS, some_settings


class Server(asyncio.Protocol):
    """A connection as uvicorn has it: takes what it is given, unless the client does not read."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.senders: set[asyncio.Task[None] | None] = set()
        self.writable = asyncio.Event()
        self.writable.set()
        self.failure: Exception | None = None

    async def send(self, message: Message) -> None:
        self.senders.add(asyncio.current_task())
        await self.writable.wait()
        if self.failure is not None:
            raise self.failure
        self.sent.append(message["text"])


def a_subscriber() -> Subscriber:
    subscriber = Subscriber("s1", "e1", 0)
    subscriber.live = True
    return subscriber


def an_outbox() -> Outbox:
    return Outbox(lambda error: pytest.fail(repr(error)))


def a_relay() -> Relay:
    settings = some_settings()
    hub = Hub(settings, Observer())
    return Relay(MemoryStore(GENEROUS), hub, settings, Observer(), now_ms=lambda: 1, new_id=lambda: "x")


@asynccontextmanager
async def following(send: Send, subscriber: Subscriber) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(Feed(an_outbox(), send, subscriber).follow(a_relay()))
    await turns()
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def turns() -> None:
    """Let everybody have the few turns of the loop that they need."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_frames_are_sent_without_waking_the_task() -> None:
    server, subscriber = Server(), a_subscriber()
    async with following(server.send, subscriber) as task:
        for text in (b"1", b"2", b"3"):
            subscriber.notify(Frame(text))
        await turns()
        assert server.sent == ["1", "2", "3"]
        assert task not in server.senders
        assert subscriber.writing_since is None


async def test_behind_a_middleware_the_task_sends() -> None:
    server, subscriber = Server(), a_subscriber()

    async def send(message: Message) -> None:
        await server.send(message)

    async with following(send, subscriber) as task:
        subscriber.notify(Frame(b"1"))
        await turns()
        assert server.sent == ["1"]
        assert server.senders == {task}


async def test_what_cannot_be_sent_at_once_keeps_its_order() -> None:
    server, subscriber = Server(), a_subscriber()
    async with following(server.send, subscriber):
        server.writable.clear()
        subscriber.notify(Frame(b"1"))
        subscriber.notify(Frame(b"2"))
        await turns()
        subscriber.notify(Frame(b"3"))
        await turns()
        assert server.sent == []
        assert subscriber.writing_since is not None
        server.writable.set()
        await turns()
        assert server.sent == ["1", "2", "3"]
        assert subscriber.writing_since is None


async def test_it_ends_behind_what_was_queued_when_the_subscriber_is_closed() -> None:
    server, subscriber = Server(), a_subscriber()
    async with following(server.send, subscriber) as task:
        subscriber.notify(Frame(b"1"))
        subscriber.close(1012, "server restarts")
        await task
        assert server.sent == ["1"]


@pytest.mark.parametrize("gone", [OSError(), RuntimeError()])
@pytest.mark.parametrize("slow", [False, True])
async def test_a_client_that_has_gone_ends_it(gone: Exception, slow: bool) -> None:
    server, subscriber = Server(), a_subscriber()
    server.failure = gone
    async with following(server.send, subscriber) as task:
        if slow:
            server.writable.clear()
        subscriber.notify(Frame(b"1"))
        await turns()
        server.writable.set()
        with pytest.raises(ClientGone):
            await task


async def test_a_failure_of_the_server_is_raised() -> None:
    server, subscriber = Server(), a_subscriber()
    server.failure = ValueError("broken")
    async with following(server.send, subscriber) as task:
        subscriber.notify(Frame(b"1"))
        with pytest.raises(ValueError, match="broken"):
            await task


async def test_it_can_be_cancelled_before_it_takes_over_what_was_begun() -> None:
    server, subscriber = Server(), a_subscriber()
    outbox = an_outbox()
    feed = Feed(outbox, server.send, subscriber)
    task = asyncio.create_task(feed.follow(a_relay()))
    await turns()
    server.writable.clear()
    subscriber.notify(Frame(b"1"))
    feed.write_now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.sent == []


async def test_many_clients_are_all_served_and_others_have_a_turn_in_between() -> None:
    outbox, server = an_outbox(), Server()
    subscribers = [a_subscriber() for _ in range(2 * SOCKETS_PER_TURN)]
    tasks = [asyncio.create_task(Feed(outbox, server.send, subscriber).follow(a_relay())) for subscriber in subscribers]
    await turns()
    for subscriber in subscribers:
        subscriber.notify(Frame(b"1"))
    await asyncio.sleep(0)
    assert len(server.sent) == SOCKETS_PER_TURN
    await turns()
    assert len(server.sent) == len(subscribers)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
