"""core/hub.py: who is woken, who is fed, who is sent back to the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from relay.core.hub import PINGS_AT_A_TIME, Hub
from relay.core.observer import Observer, WakeCause
from relay.core.subscriber import Frame, Subscriber
from relay.core.waiter import Waiter
from relay.errors import Draining, TooManyPolls, TooManySubscribers
from relay.models import MessageType
from relay.store.base import Entry
from tests.factories import some_settings


def make_hub(**settings: object) -> Hub:
    return Hub(some_settings(**settings), Observer())


def prompt(seq: int) -> Entry:
    return Entry(seq, MessageType.PROMPT, 0, b"p%d" % seq)


def answer(seq: int) -> Entry:
    return Entry(seq, MessageType.ASSISTANT, 0, b"a%d" % seq)


def joined(hub: Hub, *, epoch: str | None = "e1", position: int = 0) -> Subscriber:
    subscriber = Subscriber("s1", epoch, position)
    hub.subscribe(subscriber)
    assert hub.go_live(subscriber)
    return subscriber


async def texts(subscriber: Subscriber) -> list[bytes]:
    """What it was given, once this turn of the loop is over."""
    await asyncio.sleep(0)
    return [frame.data for frame in subscriber.take()]


def framed(*seqs: int) -> list[bytes]:
    return [b'{"type":"message","data":a%d}' % seq for seq in seqs]


# Clients


async def test_live_clients_get_each_answer_once_and_no_prompt() -> None:
    hub = make_hub()
    a, b = joined(hub), joined(hub)
    for entry in (prompt(1), answer(2), answer(3), answer(3), answer(2)):
        hub.entry_added("s1", "e1", entry)
    assert await texts(a) == await texts(b) == framed(2, 3)
    assert a.live


async def test_a_frame_is_made_once_for_all() -> None:
    hub = make_hub()
    a, b = joined(hub), joined(hub)
    hub.entry_added("s1", "e1", answer(1))
    await asyncio.sleep(0)
    assert a.take()[0] is b.take()[0]


async def test_a_lagging_client_is_not_fed() -> None:
    hub = make_hub()
    lagging = Subscriber("s1", "e1", 0)
    hub.subscribe(lagging)
    hub.entry_added("s1", "e1", answer(1))
    assert await texts(lagging) == []


async def test_a_client_goes_live_only_when_it_has_read_what_was_announced() -> None:
    hub = make_hub()
    client = Subscriber("s1", "e1", 0)
    hub.subscribe(client)
    hub.entry_added("s1", "e1", answer(1))
    assert not hub.go_live(client)
    client.position = 1
    assert hub.go_live(client)


async def test_a_client_may_have_read_further_than_was_announced() -> None:
    hub = make_hub()
    first = joined(hub)
    ahead = Subscriber("s1", "e1", 2)
    hub.subscribe(ahead)
    assert hub.go_live(ahead)
    for seq in (1, 2, 3):
        hub.entry_added("s1", "e1", answer(seq))
    assert await texts(first) == framed(1, 2, 3)
    assert await texts(ahead) == framed(3)


async def test_a_lost_announcement_sends_clients_back_to_the_log() -> None:
    hub = make_hub()
    client = joined(hub)
    hub.entry_added("s1", "e1", answer(1))
    hub.entry_added("s1", "e1", answer(3))
    assert await texts(client) == framed(1)
    assert (client.live, client.position) == (False, 1)


async def test_a_new_epoch_sends_clients_back_to_the_log() -> None:
    hub = make_hub()
    client = joined(hub, position=5)
    hub.entry_added("s1", "e2", answer(6))
    assert (client.live, client.epoch, client.position) == (False, "e1", 5)


async def test_a_client_that_finds_a_new_epoch_by_itself_sends_the_others_to_look() -> None:
    hub = make_hub()
    old = joined(hub, position=5)
    new = Subscriber("s1", "e2", 1)
    hub.subscribe(new)
    assert hub.go_live(new)
    assert not old.live
    hub.entry_added("s1", "e2", answer(2))
    assert await texts(new) == framed(2)


async def test_a_client_that_waits_for_an_unknown_session_gets_its_first_answer() -> None:
    hub = make_hub()
    client = joined(hub, epoch=None)
    hub.entry_added("s1", "e1", prompt(1))
    hub.entry_added("s1", "e1", answer(2))
    assert await texts(client) == framed(2)


async def test_overflow_sends_only_the_slow_client_back_to_the_log() -> None:
    hub = make_hub()
    slow, quick = joined(hub), joined(hub)
    for seq in range(1, 301):
        hub.entry_added("s1", "e1", answer(seq))
        assert await texts(quick) == framed(seq)
    assert quick.live
    assert (slow.live, slow.position) == (False, 256)
    assert await texts(slow) == framed(*range(1, 257))


async def test_deleting_a_session_closes_its_clients_and_the_next_session_begins_anew() -> None:
    hub = make_hub()
    client = joined(hub)
    hub.entry_added("s1", "e1", answer(1))
    hub.session_deleted("s1")
    hub.session_deleted("unknown")
    assert client.close_code == 4404
    assert await texts(client) == framed(1)
    assert not hub.go_live(client)
    late = joined(hub, epoch=None)
    hub.entry_added("s1", "e2", answer(1))
    assert await texts(late) == framed(1)
    assert await texts(client) == [], "what comes under the same name later is not its session"
    assert hub.subscribers == 2, "until it has gone, it counts"
    hub.unsubscribe(client)
    assert hub.subscribers == 1


async def test_a_deleted_session_is_not_listened_to_once_its_clients_have_gone() -> None:
    hub = make_hub()
    client = joined(hub)
    hub.session_deleted("s1")
    hub.unsubscribe(client)
    assert not hub.listened()


async def test_a_client_of_a_deleted_session_that_does_not_take_its_close_frame_is_found() -> None:
    hub = make_hub(send_timeout_seconds=10)
    client = joined(hub)
    client.writing_since = 100.0
    hub.session_deleted("s1")
    hub.close_stalled(110.0)
    assert client.stalled


async def test_all_who_are_stalled_are_closed_at_once_even_if_they_leave_at_once() -> None:
    hub = make_hub(send_timeout_seconds=10)
    clients = [joined(hub) for _ in range(5)]
    for client in clients:
        client.writing_since = 100.0
        client.on_stalled = partial(hub.unsubscribe, client)
    hub.close_stalled(110.0)
    assert [client.close_code for client in clients] == [4008] * 5
    assert hub.subscribers == 0


async def test_clients_are_bounded_in_all() -> None:
    hub = make_hub(max_subscribers=2)
    first = joined(hub)
    hub.subscribe(Subscriber("s2", None, 0))
    with pytest.raises(TooManySubscribers):
        hub.subscribe(Subscriber("s3", None, 0))
    hub.unsubscribe(first)
    hub.subscribe(Subscriber("s3", None, 0))


async def test_a_ping_reaches_everybody() -> None:
    hub = make_hub()
    client, lagging = joined(hub), Subscriber("s2", None, 0)
    hub.subscribe(lagging)
    for _ in hub.ping(Frame(b"ping")):
        pass
    assert await texts(client) == await texts(lagging) == [b"ping"]


async def test_pings_go_out_some_at_a_time_and_whoever_leaves_meanwhile_is_no_hindrance() -> None:
    hub = make_hub(max_subscribers_per_session=1000)
    clients = [joined(hub) for _ in range(2 * PINGS_AT_A_TIME + 1)]
    told = []
    for _ in hub.ping(Frame(b"ping")):
        told.append(sum(bool(client.take()) for client in clients))
        if len(told) == 1:
            for client in clients:
                hub.unsubscribe(client)
    assert told == [PINGS_AT_A_TIME, PINGS_AT_A_TIME, 1]


async def test_only_a_write_that_takes_too_long_is_stalled() -> None:
    hub = make_hub(send_timeout_seconds=10)
    stalled, writing, idle = (joined(hub) for _ in range(3))
    hung_up: list[str] = []
    stalled.on_stalled = lambda: hung_up.append("stalled")
    writing.on_stalled = lambda: hung_up.append("writing")
    stalled.writing_since, writing.writing_since = 100.0, 100.1
    hub.close_stalled(110.0)
    hub.close_stalled(110.0)
    assert hung_up == ["stalled"]
    assert (stalled.close_code, writing.close_code, idle.close_code) == (4008, None, None)


async def test_after_the_store_was_away_nobody_is_live_until_the_log_is_trusted_again() -> None:
    hub = make_hub()
    client = joined(hub)
    hub.entry_added("s1", "e1", answer(1))
    hub.announcements_lost()
    hub.entry_added("s1", "e1", answer(2))
    assert await texts(client) == framed(1)
    assert (client.live, client.position) == (False, 1)
    doubt = hub.doubted("s1")
    assert doubt is not None
    assert (doubt.epoch, doubt.seq, doubt.data) == ("e1", 1, b"a1")
    assert not hub.go_live(client)
    hub.trust("s1")
    assert hub.doubted("s1") is None
    client.position = 2
    assert hub.go_live(client)
    hub.entry_added("s1", "e1", answer(3))
    assert await texts(client) == framed(3)


async def test_another_entry_under_an_old_number_raises_doubt_but_an_echo_does_not() -> None:
    hub = make_hub()
    client = joined(hub)
    for seq in (1, 2, 3, 2, 1):
        hub.entry_added("s1", "e1", answer(seq))
    assert hub.doubted("s1") is None
    assert client.live
    hub.entry_added("s1", "e1", Entry(2, MessageType.ASSISTANT, 0, b"written anew"))
    doubt = hub.doubted("s1")
    assert doubt is not None
    assert (doubt.seq, doubt.data, client.live) == (3, b"a3", False)


async def test_what_is_remembered_of_announcements_is_bounded() -> None:
    hub = make_hub()
    joined(hub)
    for seq in range(1, 1000):
        hub.entry_added("s1", "e1", answer(seq))
    assert len(hub._channels["s1"].heard) == 64


async def test_a_session_that_is_deleted_while_it_is_doubted_begins_anew() -> None:
    hub = make_hub()
    client = joined(hub)
    hub.announcements_lost()
    hub.session_deleted("s1")
    hub.unsubscribe(client)
    late = joined(hub, epoch=None)
    hub.entry_added("s1", "e2", answer(1))
    assert await texts(late) == framed(1)


# Polls


@contextmanager
def waiter_of(hub: Hub, session_id: str) -> Iterator[Waiter]:
    waiter = hub.add_waiter(session_id)
    yield waiter
    hub.remove_waiter(session_id, waiter)


async def woken_by(waiter: Waiter) -> WakeCause:
    return await asyncio.wait_for(waiter.wait(30, 60), 1)


async def test_a_prompt_wakes_every_poll_of_its_session_only() -> None:
    hub = make_hub()
    with waiter_of(hub, "s1") as a, waiter_of(hub, "s1") as b, waiter_of(hub, "s2") as other:
        hub.entry_added("s1", "e1", prompt(1))
        assert await woken_by(a) is await woken_by(b) is WakeCause.PROMPT
        assert await other.wait(0, 60) is WakeCause.TIMEOUT


async def test_an_answer_wakes_no_poll() -> None:
    hub = make_hub()
    with waiter_of(hub, "s1") as waiter:
        hub.entry_added("s1", "e1", answer(1))
        assert await waiter.wait(0, 60) is WakeCause.TIMEOUT


async def test_a_wake_up_before_the_wait_is_not_lost() -> None:
    hub = make_hub()
    with waiter_of(hub, "s1") as waiter:
        waiter.wake(WakeCause.PROMPT)
        waiter.wake(WakeCause.SAFETY)
        assert await woken_by(waiter) is WakeCause.PROMPT


@pytest.mark.parametrize("final", [WakeCause.DRAIN, WakeCause.DELETED, WakeCause.GONE])
async def test_a_cause_that_ends_the_poll_is_not_lost_behind_another(final: WakeCause) -> None:
    with waiter_of(make_hub(), "s1") as waiter:
        waiter.wake(WakeCause.PROMPT)
        waiter.wake(final)
        waiter.wake(WakeCause.PROMPT)
        assert await woken_by(waiter) is final


async def test_a_poll_looks_again_after_the_safety_time() -> None:
    with waiter_of(make_hub(), "s1") as waiter:
        assert await waiter.wait(30, 0.001) is WakeCause.SAFETY


async def test_deleting_a_session_wakes_its_polls() -> None:
    hub = make_hub()
    with waiter_of(hub, "s1") as waiter:
        hub.session_deleted("s1")
        assert await woken_by(waiter) is WakeCause.DELETED


async def test_waiting_polls_are_bounded() -> None:
    hub = make_hub(max_waiting_polls=1)
    with waiter_of(hub, "s1"):
        hub.admit_wait()
        with waiter_of(hub, "s2"), pytest.raises(TooManyPolls):
            hub.admit_wait()
        hub.admit_wait()


# All of them


async def test_draining_sends_everybody_away_and_lets_nobody_wait_again() -> None:
    hub = make_hub()
    client = joined(hub)
    with waiter_of(hub, "s1") as waiter:
        hub.drain()
        assert await woken_by(waiter) is WakeCause.DRAIN
    assert client.close_code == 1012
    with waiter_of(hub, "s1") as late:
        assert await woken_by(late) is WakeCause.DRAIN
    with pytest.raises(Draining):
        hub.subscribe(Subscriber("s1", None, 0))


async def test_nothing_is_left_of_listeners_who_have_gone() -> None:
    hub = make_hub()
    client = joined(hub)
    with waiter_of(hub, "s1"), waiter_of(hub, "s2"):
        assert set(hub.listened()) == {"s1", "s2"}
        assert (hub.clients("s1"), hub.waiting("s1")) == (1, 1)
    hub.unsubscribe(client)
    hub.unsubscribe(client)
    assert not hub.listened()
    assert (hub.subscribers, hub.waiters, hub.clients("s1"), hub.waiting("s1")) == (0, 0, 0, 0)
