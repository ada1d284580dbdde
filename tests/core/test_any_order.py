"""Any order of announcements, reads and turns gives each client every answer after its start, once and in order.

The hub is played against a log that a test can see whole. What is announced may come late, twice or never; clients
take what they are given, or do not, fail, read pages of the log, leave and come.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.core import delivery, subscriber
from relay.core.hub import Hub
from relay.core.observer import Observer
from relay.core.subscriber import Batch, Frame, Subscriber
from relay.models import ASSISTANT, PROMPT
from relay.store.base import Entry
from relay.wire import message_frame
from tests.factories import some_settings

STEPS = (
    ["answer"] * 6
    + ["turn"] * 6
    + ["read"] * 4
    + [
        "prompt",
        "shut",
        "open",
        "flush",
        "join",
        "keep quiet",
        "announce",
        "echo",
        "lose",
        "miss",
        "fail",
        "leave",
        "ping",
    ]
    + ["elsewhere", "delete", "renew"]
)
PING = Frame(b"ping")


class Client(Subscriber):
    """Takes what it is given like a socket: at once, or from its queue once it reads again."""

    def __init__(self, play: Play) -> None:
        super().__init__("s1", play.epoch, len(play.log))
        self.got: list[bytes] = []
        self.due = Due([], play.log, len(play.log))
        self.shut = self.fails = False
        self.writer = self.write

    def write(self, batch: Batch) -> bool:
        if self.fails:
            self.fails = False
            raise OSError
        if not self.shut:
            self.got += [frame.data for _, frame in batch.answers]
        return not self.shut

    def flush(self) -> None:
        if not self.shut:
            self.got += [frame.data for frame in self.take() if frame is not PING]


class Due:
    """What a client is to get: what it got of earlier logs, then the answers of this one after its start."""

    def __init__(self, before: list[bytes], log: list[Entry], start: int) -> None:
        self._before = before
        self._log = log
        self._start = start

    def answers(self) -> list[bytes]:
        rest = self._log[self._start :]
        return self._before + [message_frame(entry.data) for entry in rest if entry.kind is ASSISTANT]


class Play:
    """One log, the hub and its clients."""

    def __init__(self) -> None:
        self.hub = Hub(some_settings(), Observer())
        self.lives = 1
        self.log: list[Entry] = []
        self.unheard: list[Entry] = []
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.quiet = False
        self.elsewhere = 0

    @property
    def epoch(self) -> str:
        return f"e{self.lives}"

    async def act(self, step: str, which: int) -> None:
        if step == "turn":
            await asyncio.sleep(0)
        elif step in ("answer", "prompt"):
            self.add(step)
        elif step in ("join", "keep quiet", "announce", "echo", "lose", "miss", "ping", "elsewhere", "delete", "renew"):
            self.act_on_all(step, which)
        elif self.clients:
            self.act_on_one(step, self.clients[which % len(self.clients)])
        self.check()

    def add(self, kind: str) -> None:
        seq = len(self.log) + 1
        entry = Entry(seq, ASSISTANT if kind == "answer" else PROMPT, 0, b"%s %d" % (self.epoch.encode(), seq))
        self.log.append(entry)
        self.unheard.append(entry)
        if not self.quiet:
            self.announce()

    def announce(self) -> None:
        while self.unheard:
            self.hub.entry_added("s1", self.epoch, self.unheard.pop(0))

    def act_on_all(self, step: str, which: int) -> None:
        if step == "join":
            self.clients.append(client := Client(self))
            self.hub.subscribe(client)
            self.read(client)
        elif step == "keep quiet":
            self.quiet = True
        elif step == "announce":
            self.quiet = False
            self.announce()
        elif step == "echo" and len(self.log) > len(self.unheard):
            heard = self.log[: len(self.log) - len(self.unheard)]
            self.hub.entry_added("s1", self.epoch, heard[which % len(heard)])
        elif step == "lose":
            self.unheard.clear()
        elif step == "miss":
            self.hub.announcements_lost()
        elif step == "ping":
            for _ in self.hub.ping(PING):
                pass
        elif step == "elsewhere":
            self.elsewhere += 1
            other = Subscriber(f"other{self.elsewhere % 2}", f"e{self.elsewhere}", 0)
            self.hub.subscribe(other)
            self.hub.go_live(other)
            self.hub.entry_added(other.session_id, f"e{self.elsewhere}", Entry(1, ASSISTANT, 0, b"else"))
        elif step in ("delete", "renew"):
            self.end_log(step)

    def end_log(self, how: str) -> None:
        """The log ends, and another begins under its name; who was live has got all of the old one."""
        self.quiet = False
        self.add("answer")  # whoever has missed one is now sent to look
        for client in self.clients:
            client.shut = client.fails = False
            client.flush()
        live = [client for client in self.clients if client.live]
        due = {client: client.due.answers() if client in live else client.got[:] for client in self.clients}
        self.lives += 1
        self.log = []
        if how == "renew":
            self.add("answer")
        else:
            self.hub.session_deleted("s1")
        for client in self.clients:
            client.flush()
            assert client.got == due[client]
            client.due = Due(due[client], self.log, 0)
            if how == "delete":
                assert client.close_code is not None
                self.hub.unsubscribe(client)
        if how == "delete":
            self.clients = []

    def act_on_one(self, step: str, client: Client) -> None:
        if step == "read" and not client.live:
            client.flush()
            if not client.shut:
                self.read(client)
        elif step in ("shut", "open"):
            client.shut = step == "shut"
            client.flush()
        elif step == "flush":
            client.flush()
        elif step == "fail":
            client.fails = True
        elif step == "leave":
            self.clients.remove(client)
            self.gone.append(client)
            self.hub.unsubscribe(client)

    def read(self, client: Client) -> None:
        """What `Relay.catch_up` does with one page."""
        if self.hub.doubted("s1") is not None:
            self.hub.trust("s1")
        if client.epoch != self.epoch:
            client.epoch, client.position = self.epoch, 0
        page = self.log[client.position : client.position + 3]
        if not page:
            self.hub.go_live(client)
        for entry in page:
            if entry.kind is ASSISTANT:
                client.got.append(message_frame(entry.data))
            client.position = entry.seq

    def check(self) -> None:
        for client in self.clients + self.gone:
            due = client.due.answers()
            assert client.got == due[: len(client.got)]

    async def settle(self) -> None:
        """Let everybody hear of the end of the log, take and read until there is nothing left."""
        self.quiet = False
        self.add("answer")
        for client in self.clients:
            client.shut = client.fails = False
        for _ in range(40 + len(self.log)):
            await asyncio.sleep(0)
            for client in self.clients:
                self.act_on_one("read", client)
                client.flush()
        self.check()
        for client in self.clients:
            assert client.live
            assert client.got == client.due.answers()


async def play(steps: list[tuple[str, int]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # "fail" complains, as it should
    game = Play()
    for step, which in steps:
        await game.act(step, which)
    await game.settle()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few clients and answers fill turns, batches and queues."""
    monkeypatch.setattr(subscriber, "MAX_QUEUE_FRAMES", 4)
    monkeypatch.setattr(delivery, "MAX_ANSWERS", 5)
    monkeypatch.setattr(delivery, "HURRY", 2)
    monkeypatch.setattr(delivery, "CLIENTS_PER_TURN", 2)
    monkeypatch.setattr(delivery, "FEW", 1)


@pytest.mark.usefixtures("_small")
def test_any_order_gives_each_client_every_answer_after_its_start_once_and_in_order() -> None:
    steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=20, max_size=80)
    joins = [("join", 0)] * 5

    @settings(max_examples=100, deadline=None, print_blob=True)
    @given(steps)
    def check(steps: list[tuple[str, int]]) -> None:
        asyncio.run(play(joins + steps))

    check()
