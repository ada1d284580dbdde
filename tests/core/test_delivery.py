"""core/delivery.py: what goes out together, in which order, and that one client holds up no other."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from relay.core import delivery
from relay.core.delivery import CLIENT_BYTES, CLIENTS_PER_TURN, FEW, HURRY, MAX_ANSWERS, MAX_BYTES
from relay.core.hub import Hub
from relay.core.observer import Observer
from relay.core.subscriber import MAX_QUEUE_BYTES, Batch, Subscriber
from relay.models import MessageType
from relay.store.base import Entry
from tests.factories import some_settings


class Watching(Observer):
    def __init__(self) -> None:
        self.fan_outs = 0
        self.overflows = 0

    def fanned_out(self, seconds: float) -> None:
        assert 0 <= seconds < 10
        self.fan_outs += 1

    def queue_overflowed(self, session_id: str) -> None:
        self.overflows += 1


class Client(Subscriber):
    """A live client that keeps the batches it is given; if `shut`, it takes none at once."""

    def __init__(self, hub: Hub, session_id: str = "s1") -> None:
        super().__init__(session_id, "e1", 0)
        self.batches: list[Batch] = []
        self.shut = False
        self.writer = self.write
        hub.subscribe(self)
        assert hub.go_live(self)

    def write(self, batch: Batch) -> bool:
        if not self.shut:
            self.batches.append(batch)
        return not self.shut

    @property
    def got(self) -> list[bytes]:
        return [frame.data for batch in self.batches for _, frame in batch.answers]

    def has_all(self, *seqs: int) -> bool:
        """Whether it was given these and no others, at once or by its queue."""
        return self.got + [frame.data for frame in self.take()] == framed(*seqs)


@pytest.fixture(autouse=True)
def _always_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FEW", 0)


def a_hub(observer: Observer | None = None) -> Hub:
    return Hub(some_settings(), observer or Observer())


def say(hub: Hub, *seqs: int, session_id: str = "s1", size: int = 0) -> None:
    for seq in seqs:
        hub.entry_added(session_id, "e1", Entry(seq, MessageType.ASSISTANT, 0, b"%d" % seq + b"x" * size))


def framed(*seqs: int) -> list[bytes]:
    return [b'{"type":"message","data":%d}' % seq for seq in seqs]


async def turns(count: int = 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_announced_in_one_turn_is_one_batch_for_all() -> None:
    hub = a_hub(observer := Watching())
    a, b = Client(hub), Client(hub)
    say(hub, 1, 2)
    assert (a.batches, observer.fan_outs) == ([], 0)
    await turns()
    say(hub, 3)
    await turns()
    assert a.got == b.got == framed(1, 2, 3)
    assert len(a.batches) == 2
    assert a.batches == b.batches  # the very same
    assert observer.fan_outs == 3


async def test_what_becomes_too_much_is_queued_at_once() -> None:
    hub = a_hub()
    client = Client(hub)
    say(hub, *range(1, MAX_ANSWERS + 2))
    assert len(client.take()) == MAX_ANSWERS
    say(hub, MAX_ANSWERS + 2, size=MAX_BYTES)
    assert len(client.take()) == 2
    say(hub, MAX_ANSWERS + 3)
    await turns()
    assert [len(batch.answers) for batch in client.batches] == [1]


async def test_the_more_is_on_its_way_the_more_have_a_turn() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(2 * CLIENTS_PER_TURN)]
    say(hub, *range(1, MAX_ANSWERS // HURRY + 1))
    await turns(2)
    assert all(client.batches for client in clients)


async def test_large_answers_are_given_to_fewer_in_a_turn() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(CLIENTS_PER_TURN)]
    say(hub, 1, size=3 * CLIENT_BYTES)
    await turns(2)
    assert sum(bool(client.batches) for client in clients) == CLIENTS_PER_TURN // 4
    await turns(20)
    assert all(client.batches for client in clients)


@pytest.mark.parametrize(
    ("count", "order"), [(FEW, ["given", "posted", "due"]), (FEW + 1, ["posted", "due", "given"])], ids=["few", "many"]
)
async def test_few_have_it_queued_at_once_and_many_after_all_else_that_is_due(
    count: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FEW", FEW)
    hub = a_hub(observer := Watching())
    clients = [Client(hub) for _ in range(count)]
    seen: list[str] = []
    clients[0].waker = partial(seen.append, "given")
    clients[0].shut = True
    say(hub, 1)
    seen.append("posted")
    asyncio.get_running_loop().call_soon(seen.append, "due")
    await turns()
    assert seen == order
    assert observer.fan_outs == 1


async def test_few_who_take_nothing_are_sent_to_the_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FEW", FEW)
    hub = a_hub(observer := Watching())
    client = Client(hub)
    say(hub, 1, 2, 3, size=MAX_QUEUE_BYTES // 2 - 100)
    assert (client.live, client.position, observer.overflows) == (False, 2, 1)
    assert len(client.take()) == 2


async def test_others_have_a_turn_while_very_many_are_served_and_who_comes_later_gets_more_at_once() -> None:
    hub = a_hub(observer := Watching())
    clients = [Client(hub) for _ in range(3 * CLIENTS_PER_TURN)]
    other = Client(hub, "s2")
    say(hub, 1)
    for turn in range(4):
        assert sum(bool(client.batches) for client in clients) == turn * CLIENTS_PER_TURN
        await turns(2)
        say(hub, turn + 2)
    say(hub, 1, session_id="s2")
    await turns(20)
    assert all(client.got == framed(1, 2, 3, 4, 5) for client in clients)
    sizes = {tuple(len(batch.answers) for batch in client.batches) for client in clients}
    assert sizes == {(1, 3, 1), (2, 3), (3, 2)}
    assert len({id(batch) for client in clients for batch in client.batches}) == 7
    assert other.got == framed(1)
    assert observer.fan_outs == 6


async def test_answers_that_never_cease_are_still_given_to_all_and_to_newcomers() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(2 * CLIENTS_PER_TURN)]
    count = 1000
    for seq in range(1, count + 1):
        say(hub, seq)
        if seq == count // 2:
            newcomer = Subscriber("s1", "e1", seq)
            hub.subscribe(newcomer)
            assert hub.go_live(newcomer)
        await turns()
        if seq > count // 2:
            newcomer.take()
    await turns(20)
    assert newcomer.position == count
    assert all(client.has_all(*range(1, count + 1)) for client in clients)


async def test_a_delivery_that_was_hurried_does_not_hurry_the_next() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(4 * CLIENTS_PER_TURN)]
    say(hub, 1)
    say(hub, *range(2, MAX_ANSWERS + 1))  # it is finished while its next step is due
    for client in clients:
        client.take()
    say(hub, MAX_ANSWERS + 1)
    await turns(3)
    say(hub, MAX_ANSWERS + 2)
    for turn in range(1, 4):
        assert sum(bool(client.batches) for client in clients) == turn * CLIENTS_PER_TURN
        await turns(2)


async def test_what_happens_in_one_session_does_not_hurry_the_delivery_in_another() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(2 * CLIENTS_PER_TURN)]
    say(hub, 1)
    Client(hub, "s2")  # the first there
    hub.session_deleted("s2")
    assert not any(client.batches or client.take() for client in clients)
    await turns(4)
    assert all(client.got == framed(1) for client in clients)


async def test_a_delivery_that_has_ended_does_not_keep_clients_that_leave() -> None:
    hub = a_hub()
    Client(hub)
    leaves = Client(hub)
    say(hub, 1)
    await turns()
    hub.unsubscribe(leaves)
    left = weakref.ref(leaves)
    del leaves
    gc.collect()
    assert left() is None


async def test_who_goes_live_while_it_is_under_way_gets_only_what_it_has_not_read() -> None:
    hub = a_hub()
    clients = [Client(hub) for _ in range(CLIENTS_PER_TURN + 1)]
    say(hub, 1)
    await turns(2)  # some have got it
    say(hub, 2)
    late = Subscriber("s1", "e1", 2)
    hub.subscribe(late)
    assert hub.go_live(late)
    say(hub, 3)
    await turns(10)
    assert [frame.data for frame in late.take()] == framed(3)
    assert all(client.got == framed(1, 2, 3) for client in clients)


async def test_who_takes_nothing_is_sent_to_the_log_where_its_queue_ends() -> None:
    hub = a_hub(observer := Watching())
    slow, quick = Client(hub), Client(hub)
    slow.shut = True
    for seq in range(1, 4):
        say(hub, seq, size=MAX_QUEUE_BYTES // 2 - 100)
        await turns()
    assert (slow.live, slow.position, observer.overflows) == (False, 2, 1)
    assert (len(slow.take()), len(quick.batches)) == (2, 3)


async def test_one_that_cannot_be_given_anything_keeps_no_other_from_its_answer() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    hub = a_hub()
    clients = [Client(hub) for _ in range(3)]

    def fail(_: Batch) -> bool:
        raise RuntimeError

    clients[1].writer = fail
    say(hub, 1)
    await turns()
    assert [client.got for client in clients] == [framed(1), [], framed(1)]
    assert [type(complaint) for complaint in complaints] == [RuntimeError]
    assert (clients[1].live, clients[1].position) == (False, 0)  # the log has it


async def test_nothing_overtakes_what_is_on_its_way() -> None:
    ends: dict[str, Callable[[Hub], None]] = {
        "a lost announcement": lambda hub: say(hub, 9),
        "doubt": lambda hub: hub.announcements_lost(),
        "deletion": lambda hub: hub.session_deleted("s1"),
        "a stop": lambda hub: hub.drain(),
    }
    for end in ends.values():
        hub = a_hub()
        clients = [Client(hub) for _ in range(CLIENTS_PER_TURN + 1)]
        say(hub, 1)
        end(hub)
        assert not any(client.live for client in clients)
        assert all(client.has_all(1) for client in clients)
        await turns(3)
        assert not any(client.batches or client.take() for client in clients)


async def test_who_was_closed_gets_no_more() -> None:
    hub = a_hub()
    client = Client(hub)
    say(hub, 1)
    client.close(4401, "token expired")
    await turns()
    assert client.got == []


async def test_who_has_left_gets_no_more() -> None:
    hub = a_hub(observer := Watching())
    client = Client(hub)
    client.shut = True
    say(hub, 1)
    hub.unsubscribe(client)
    await turns()
    assert (client.take(), observer.overflows) == ([], 0)


async def test_an_observer_that_fails_silences_nobody() -> None:
    class Failing(Observer):
        def fanned_out(self, seconds: float) -> None:
            raise RuntimeError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    hub = a_hub(Failing())
    clients = [Client(hub), Client(hub, "s2")]
    for seq in (1, 2):
        say(hub, seq)
        say(hub, seq, session_id="s2")
        await turns(6)
    assert all(client.got == framed(1, 2) for client in clients)
