"""One connection, on which calls travel one behind the other: replies come in the order in which calls were sent.

The next call does not wait for the reply to the one before. Whoever waits for a call may give up at any time: that
abandons the answer, never the connection, so no reply can reach anybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import redis.exceptions
from redis.exceptions import RedisError, ResponseError

from relay.store.redis_call import Call, fail_all, ignored
from relay.store.redis_connection import Connection, Reply

CALL_SECONDS = 5.0
"""For a connection, and from sending a call to its reply. Redis answers within a millisecond or is in trouble; whoever
asked gets a 503 rather than no answer at all."""

WAIT_MS = 1000
"""How long replicas have to confirm a write, if that is asked for."""

HELD_UP_SECONDS = 0.05
"""So long without a reply, and what only looks goes by another connection."""

Connect = Callable[[], Awaitable[Connection]]


class Owner(Protocol):
    """Whose connection it is."""

    def refused(self, call: Call, refusal: ResponseError) -> None:
        """Redis has not done what the call says."""

    def broken(self) -> None:
        """Calls have failed."""

    def flush(self) -> None:
        """Calls may be sent again."""


class Lane:
    """One connection: replies come in the order in which the calls were sent."""

    is_free = True
    """Whether calls may be sent now."""

    def __init__(self, owner: Owner, connect: Connect) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._connect = connect
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[Call] = []
        self._expected: deque[Call] = deque()
        self._sent = 0
        self._sendings: deque[tuple[int, float]] = deque()
        """How many calls had been sent in all, and when that was; those that are answered are dropped from time to
        time: to look at each reply's time would cost more than the reply."""
        self._watch: asyncio.TimerHandle | None = None

    def send(self, calls: list[Call]) -> None:
        """Send the calls, now or when there is a connection."""
        if self._connection is not None:
            self._write(self._connection, calls)
        else:
            self._unsent += calls
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._make_connection())
                # Nobody waits for this task, so a cancellation means one of two things: the time is up, or close().
                timer = self._loop.call_later(CALL_SECONDS, self._connecting.cancel)
                self._connecting.add_done_callback(lambda _: timer.cancel())

    @property
    def under_way(self) -> int:
        """How many calls have no reply yet."""
        return len(self._expected) + len(self._unsent)

    def is_held_up(self, now: float) -> bool:
        """Whether a reply is overdue."""
        sent_at = self._oldest()
        return sent_at is not None and now - sent_at > HELD_UP_SECONDS

    def give_up(self, error: BaseException) -> None:
        """Drop the connection; calls under way fail. The next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._fail(error)

    async def close(self) -> None:
        """The end."""
        if self._connecting is not None:
            await end(self._connecting)
        connection = self._connection
        self.give_up(RedisError("closed"))
        if self._watch is not None:
            self._watch.cancel()
        if connection is not None:
            await connection.wait_closed()

    async def _make_connection(self) -> None:
        try:
            try:
                connection = await self._connect()
            except (ConnectionError, redis.exceptions.ConnectionError):
                # Nothing was sent, so a second try is safe; it finds the new master if the first met the old one.
                connection = await self._connect()
            connection.hand_over_to(self._take, self._lost)
        except BaseException as exc:  # whatever it was, nobody may be left waiting
            self._connecting = None
            self._fail(TimeoutError("no connection in time") if isinstance(exc, asyncio.CancelledError) else exc)
            self._owner.broken()
            return
        self._connecting = None
        self._connection = connection
        calls, self._unsent = self._unsent, []
        self._write(connection, calls)

    def _write(self, connection: Connection, calls: list[Call]) -> None:
        connection.write(b"".join([call.command for call in calls]))
        self._expected.extend(calls)
        self._sent += len(calls)
        self._oldest()
        self._sendings.append((self._sent, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(CALL_SECONDS, self._look_after)

    def _take(self, reply: Reply) -> None:
        call = self._expected.popleft()
        if isinstance(reply, ResponseError):
            self._owner.refused(call, reply)
        else:
            call.heed(reply)
            call.answer(reply)

    def _lost(self, error: Exception) -> None:
        self._connection = None
        self._fail(error)
        self._owner.broken()

    def _look_after(self) -> None:
        self._watch = None
        sent_at = self._oldest()
        if sent_at is None:
            return
        left = sent_at + CALL_SECONDS - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look_after)
        else:
            self.give_up(TimeoutError("no reply in time"))
            self._owner.broken()

    def _oldest(self) -> float | None:
        """When the first of the calls that have no reply was sent; None if all have one."""
        answered = self._sent - len(self._expected)
        while self._sendings and self._sendings[0][0] <= answered:
            self._sendings.popleft()
        return self._sendings[0][1] if self._sendings else None

    def _fail(self, error: BaseException) -> None:
        sent, self._expected = self._expected, deque()
        unsent, self._unsent = self._unsent, []
        for call in sent:
            call.lose(error)
        fail_all(unsent, error)


class ConfirmedLane(Lane):
    """One whose calls are answered when so many replicas have them.

    While replicas are waited for, calls gather, and are confirmed together next.
    """

    def __init__(self, owner: Owner, connect: Connect, wait_replicas: int) -> None:
        super().__init__(owner, connect)
        self._wait_replicas = wait_replicas
        self._unconfirmed: list[tuple[Call, Reply]] = []

    @property
    def is_free(self) -> bool:  # type: ignore[override]
        return not self.under_way

    def _write(self, connection: Connection, calls: list[Call]) -> None:
        # One WAIT for all: it covers every write before it on this connection.
        super()._write(connection, [*calls, ignored(b"WAIT", self._wait_replicas, WAIT_MS)])

    def _take(self, reply: Reply) -> None:
        if len(self._expected) > 1:
            if isinstance(reply, ResponseError):
                super()._take(reply)
            else:
                call = self._expected.popleft()
                call.heed(reply)
                self._unconfirmed.append((call, reply))
            return
        self._expected.clear()
        calls, self._unconfirmed = self._unconfirmed, []
        error = self._unconfirmed_by(reply)
        for call, kept in calls:
            if error is None:
                call.answer(kept)
            else:
                call.fail(error)
        self._owner.flush()

    def _unconfirmed_by(self, replicas: Reply) -> Exception | None:
        if isinstance(replicas, int) and replicas < self._wait_replicas:
            return RedisError(f"{replicas} of {self._wait_replicas} replicas have confirmed")
        return replicas if isinstance(replicas, Exception) else None

    def _fail(self, error: BaseException) -> None:
        calls, self._unconfirmed = self._unconfirmed, []
        fail_all((call for call, _ in calls), error)
        super()._fail(error)
        self._loop.call_soon(self._owner.flush)  # those that have gathered meanwhile


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end."""
    # More than once: until Python 3.12, asyncio.wait_for may swallow a cancellation.
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
