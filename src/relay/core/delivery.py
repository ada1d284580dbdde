"""Answers on their way to the live clients of their sessions.

What a session gets in one turn of the event loop is given to its clients together, at the end of that turn. With many
clients it takes several turns to give it to all; who is reached later gets what has come meanwhile along with it. A
batch is put together once for all who get the same, and whoever can write it does so at once; a client's own queue is
for those who cannot.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Iterable

from relay.core.observer import Observer
from relay.core.subscriber import MAX_QUEUE_BYTES, MAX_QUEUE_FRAMES, Batch, Frame, Subscriber

CLIENTS_PER_TURN = 256
"""So many are given something before everybody else has a turn: about half a millisecond."""

MAX_ANSWERS = 1024
"""While answers come faster than they can be given to all, a delivery does not end; after so many another begins."""

FEW = 16
"""A delivery to more clients than that lets everybody else have a turn first. So the answer to whoever posted it goes
out before it, and the next post may come while this one is sent to many."""


class Delivery:
    """What one session's clients have not all got yet."""

    def __init__(self, epoch: str, after: int, clients: Iterable[Subscriber]) -> None:
        self._epoch = epoch
        self._after = after
        """The seq up to which all of them have everything."""
        self._answers: list[tuple[int, Frame, float]] = []
        """By seq, and when each came."""
        self._size = 0
        self._first = 0
        """How many answers there were before these, which all have got."""
        self._groups = deque([([client for client in clients if client.live], 0)])
        """The clients by the number of answers that they have got; who has got least comes first."""
        self._batch: tuple[int, int, Batch] | None = None

    @property
    def _count(self) -> int:
        return self._first + len(self._answers)

    @property
    def is_done(self) -> bool:
        """Whether everybody has got everything."""
        return not self._answers

    @property
    def is_full(self) -> bool:
        """Whether it has become too much, or has gone on for so long that many clients may have left."""
        return len(self._answers) >= MAX_QUEUE_FRAMES or self._size >= MAX_QUEUE_BYTES or self._count >= MAX_ANSWERS

    def add(self, seq: int, frame: Frame) -> None:
        """One more answer for everybody."""
        self._answers.append((seq, frame, time.perf_counter()))
        self._size += len(frame.data)

    def join(self, client: Subscriber) -> None:
        """One more client, who has everything up to now."""
        self._put_last([client])

    def give(self, most: int, observer: Observer) -> int:
        """Give the next clients what they have not got, at most so many. Returns how many there were."""
        clients, got = self._groups[0]
        batch = self._batch_after(got)
        now, left = clients[:most], clients[most:]
        self._groups[0] = (left, got)
        for client in now:
            if client.live and not _offer(client, batch):
                observer.queue_overflowed(client.session_id)
                client.fall_behind(self._epoch, batch.after)
        if not left:
            self._groups.popleft()
        self._put_last(now)
        self._forget(self._groups[0][1], observer)
        return len(now)

    def _put_last(self, clients: list[Subscriber]) -> None:
        if self._groups and self._groups[-1][1] == self._count:
            self._groups[-1][0].extend(clients)
        else:
            self._groups.append((clients, self._count))

    def _batch_after(self, got: int) -> Batch:
        """What comes after so many answers."""
        if self._batch is None or self._batch[:2] != (got, self._count):
            skipped = got - self._first
            after = self._answers[skipped - 1][0] if skipped else self._after
            batch = Batch(after, [(seq, frame) for seq, frame, _ in self._answers[skipped:]])
            self._batch = (got, self._count, batch)
        return self._batch[2]

    def _forget(self, got: int, observer: Observer) -> None:
        """Everybody has got so many."""
        now = time.perf_counter()
        done = self._answers[: got - self._first]
        for seq, frame, came in done:
            self._after = seq
            self._size -= len(frame.data)
            observer.fanned_out(now - came)
        del self._answers[: len(done)]
        self._first = got


def _offer(client: Subscriber, batch: Batch) -> bool:
    try:
        return client.offer(batch)
    except Exception as error:  # what is wrong with one must not keep the others waiting
        told = {"message": "an answer could not be delivered", "exception": error}
        asyncio.get_running_loop().call_exception_handler(told)
        return True


class Deliveries:
    """Those of one process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._under_way: deque[Delivery] = deque()

    def begin(self, epoch: str, after: int, clients: set[Subscriber]) -> Delivery:
        """Have answers, which are added later in this turn, given to those of the clients who are live.

        They have everything up to the entry `after` of the log's life `epoch`.
        """
        delivery = Delivery(epoch, after, clients)
        self._under_way.append(delivery)
        if len(self._under_way) == 1:
            (self._soon if len(clients) <= FEW else self._later)()
        return delivery

    def finish(self) -> None:
        """Give everybody now what is on its way: something comes that must not overtake it."""
        while self._under_way:
            self._give(sys.maxsize)

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)

    def _later(self) -> None:
        """Go on when everybody else has had a turn."""
        asyncio.get_running_loop().call_soon(self._soon)

    def _go_on(self) -> None:
        left = CLIENTS_PER_TURN
        while left > 0 and self._under_way:
            left -= self._give(left)
        if self._under_way:
            self._later()

    def _give(self, most: int) -> int:
        """Go on with the next delivery, each in its turn."""
        delivery = self._under_way.popleft()
        given = delivery.give(most, self._observer)
        if not delivery.is_done:
            self._under_way.append(delivery)
        return given
