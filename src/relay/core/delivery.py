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
from collections.abc import Callable, Iterable

from relay.core.observer import Observer
from relay.core.subscriber import MAX_QUEUE_BYTES, Batch, Frame, Subscriber

CLIENTS_PER_TURN = 256
"""So many are given something before everybody else has a turn: about half a millisecond."""

CLIENT_BYTES = 16 * 1024
"""Who is given more counts as several: a megabyte for each of them would take a quarter of a second."""

MAX_ANSWERS = 1024
MAX_BYTES = MAX_QUEUE_BYTES
"""So much of a session may be on its way. What is more is queued for everybody at once, and who has no room reads the
log; before it comes to that, the more there is the more clients have a turn, up to `HURRY` times as many."""

HURRY = 16

FEW = 16
"""For so many clients an answer is simply queued. For more there is a delivery, which lets everybody else have a turn
first: the answer to whoever posted goes out before it, and the next post may come while this one is sent to many."""


class Delivery:
    """What one session's clients have not all got yet."""

    def __init__(self, epoch: str, after: int, clients: Iterable[Subscriber], observer: Observer) -> None:
        self._epoch = epoch
        self._observer = observer
        self._answers: list[tuple[int, Frame, float]] = []
        """By seq, and when each came."""
        self._last = after
        """The seq of the last one."""
        self._size = 0
        self._groups = deque([([client for client in clients if client.live], after)])
        """The clients by the seq up to which they have got everything; who has got least comes first."""
        self._batch: Batch | None = None

    @property
    def is_done(self) -> bool:
        """Whether everybody has got everything."""
        return not self._answers

    def add(self, seq: int, frame: Frame) -> None:
        """One more answer for everybody."""
        self._answers.append((seq, frame, time.perf_counter()))
        self._last = seq
        self._size += len(frame.data)
        if len(self._answers) >= MAX_ANSWERS or self._size >= MAX_BYTES:
            self.finish()

    def join(self, client: Subscriber) -> None:
        """One more client, who has everything up to now."""
        self._put_last([client])

    def give(self, most: int) -> int:
        """Give the next clients what they have not got; returns how much of `most` that took."""
        return 0 if self.is_done else self._pass_on(Subscriber.offer, most)

    def finish(self) -> None:
        """Have everybody's part queued now: it has become too much, or something comes that must not overtake it.

        Nothing is written: to do that for many clients takes far too long for one turn.
        """
        while not self.is_done:
            self._pass_on(Subscriber.queue, sys.maxsize)

    def _pass_on(self, take: Callable[[Subscriber, Batch], bool], most: int) -> int:
        clients, after = self._groups.popleft()
        batch = self._batch_after(after)
        cost = 1 + batch.size // CLIENT_BYTES
        hurry = 1 + max(HURRY * len(self._answers) // MAX_ANSWERS, HURRY * self._size // MAX_BYTES)
        count = max(1, most * hurry // cost)
        now, left = clients[:count], clients[count:]
        if left:
            self._groups.appendleft((left, after))
        for client in now:
            if client.live and not self._takes(client, batch, take):
                client.fall_behind(self._epoch, after)
        # Whoever has gone, or reads the log, joins anew if it goes live again.
        self._put_last([client for client in now if client.live])
        self._forget(self._groups[0][1])
        return max(1, len(now) * cost // hurry)

    def _takes(self, client: Subscriber, batch: Batch, take: Callable[[Subscriber, Batch], bool]) -> bool:
        try:
            if take(client, batch):
                return True
            self._observer.queue_overflowed(client.session_id)
        except Exception as error:  # what is wrong with one must not keep the others waiting
            told = {"message": "an answer could not be delivered", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
        return False

    def _put_last(self, clients: list[Subscriber]) -> None:
        if self._groups and self._groups[-1][1] == self._last:
            self._groups[-1][0].extend(clients)
        else:
            self._groups.append((clients, self._last))

    def _batch_after(self, after: int) -> Batch:
        if self._batch is None or (self._batch.after, self._batch.last) != (after, self._last):
            self._batch = Batch(after, [(seq, frame) for seq, frame, _ in self._answers if seq > after])
        return self._batch

    def _forget(self, seq: int) -> None:
        """Everybody has got everything up to there."""
        if seq == self._last:  # the session remembers this delivery, which must not keep what it held
            done, self._answers = self._answers, []
            self._size = 0
            self._groups.clear()
            self._batch = None
        elif self._answers[0][0] <= seq:
            done = [answer for answer in self._answers if answer[0] <= seq]
            del self._answers[: len(done)]
            self._size -= sum(len(frame.data) for _, frame, _ in done)
        else:
            return
        now = time.perf_counter()
        for _, _, came in done:
            self._observer.fanned_out(now - came)


class Deliveries:
    """Those of one process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._under_way: deque[Delivery] = deque()
        self._going = False

    def queue_for_few(self, epoch: str, after: int, clients: set[Subscriber], seq: int, frame: Frame) -> bool:
        """Queue an answer at once, if there are only a few clients; whether there were."""
        if len(clients) > FEW:
            return False
        began = time.perf_counter()
        for client in clients:
            if client.live and not client.queue_answer(seq, frame):
                self._observer.queue_overflowed(client.session_id)
                client.fall_behind(epoch, after)
        self._observer.fanned_out(time.perf_counter() - began)
        return True

    def begin(self, epoch: str, after: int, clients: set[Subscriber]) -> Delivery:
        """Have answers, which are added later in this turn, given to those of the clients who are live.

        They have everything up to the entry `after` of the log's life `epoch`.
        """
        delivery = Delivery(epoch, after, clients, self._observer)
        self._under_way.append(delivery)
        if not self._going:
            self._going = True
            self._later()
        return delivery

    def _later(self) -> None:
        """Go on when everybody else has had a turn."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._go_on)

    def _go_on(self) -> None:
        left = CLIENTS_PER_TURN
        try:
            while left > 0 and self._under_way:
                left -= self._give(left)
        finally:  # whatever has gone wrong with one, the others wait
            self._going = bool(self._under_way)
            if self._going:
                self._later()

    def _give(self, most: int) -> int:
        """Go on with the next delivery, each in its turn."""
        delivery = self._under_way.popleft()
        try:
            return delivery.give(most)
        finally:
            if not delivery.is_done:
                self._under_way.append(delivery)
