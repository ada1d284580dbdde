"""Who listens in this process: polls that wait for a prompt, clients that wait for answers.

The hub is told by the store what was kept, wakes the waiting polls and feeds the live clients. It never waits itself
and never reads the store: an announcement that does not fit the one before only sends clients back to the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from relay.config import Settings
from relay.core.delivery import Deliveries, Delivery
from relay.core.observer import Observer, WakeCause
from relay.core.subscriber import (
    CLOSE_RESTART,
    CLOSE_SESSION_DELETED,
    CLOSE_SLOW,
    Frame,
    Subscriber,
)
from relay.core.waiter import Waiter, Waits
from relay.errors import Draining, TooManyPolls, TooManySubscribers
from relay.models import ASSISTANT, PROMPT
from relay.store.base import Entry, Place, Seat
from relay.wire import message_frame

_PROMPT = WakeCause.PROMPT

PINGS_AT_A_TIME = 256
"""With ten thousand at once the first would be in no cache any more when they are written to."""

REMEMBERED = 64
"""So many announced entries are remembered by their hash."""


class Doubt(msgspec.Struct, frozen=True):
    """A place that a log was known to reach, and the message there if it was heard."""

    epoch: str
    seq: int
    data: bytes | None


class _Channel:
    """The listeners of one session and the place in its log that the live ones have reached."""

    __slots__ = ("delivery", "doubtful", "epoch", "heard", "last", "seq", "subscribers", "waiters")

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.seq = 0
        self.last: Entry | None = None
        """The entry at `seq`, if it was announced."""
        self.doubtful = False
        """Whether the log may no longer be the one of which this was announced."""
        self.heard: dict[int, int] = {}
        """A hash of each of the last entries that were announced, by seq: an echo can be told from a rewritten log."""
        self.subscribers: set[Subscriber] = set()
        self.waiters: set[Waiter] = set()
        self.delivery: Delivery | None = None
        """The last one; what comes while it is under way goes with it."""

    def finish_delivery(self) -> None:
        """Something comes that must not overtake what is on its way."""
        if self.delivery is not None:
            self.delivery.finish()


class Hub:
    """The listeners of every session in this process. Implements the store's `Listener`."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self._settings = settings
        self._observer = observer
        self._channels: dict[str, _Channel] = {}
        self._max_waiting_polls = settings.max_waiting_polls
        self.waits = Waits()
        self._deliveries = Deliveries(observer)
        self.draining = False
        self.subscribers = 0
        self.waiters = 0

    # What the store tells

    def entry_added(self, session_id: str, epoch: str, entry: Entry) -> None:
        channel = self._channels.get(session_id)
        if channel is None:
            return
        if entry.kind is PROMPT:
            for waiter in channel.waiters:
                waiter.wake(_PROMPT)
        if channel.doubtful:
            return  # nobody is live, and what was known before is needed as evidence
        seq, known = entry.seq, channel.epoch
        if seq == channel.seq + 1 and (known == epoch or known is None):
            if channel.subscribers and entry.kind is ASSISTANT:
                self._fan_out(channel, epoch, entry)
        elif known == epoch and seq <= channel.seq:
            if channel.heard.get(seq) != hash(entry.data):
                self._doubt(channel)  # late, or another entry under an old number: the log will tell
            return
        else:
            self._send_back_to_log(channel)
        channel.epoch, channel.seq, channel.last = epoch, seq, entry
        channel.heard[seq] = hash(entry.data)
        channel.heard.pop(seq - REMEMBERED, None)

    def announcements_lost(self) -> None:
        self._observer.announcements_lost()
        for channel in self._channels.values():
            self._doubt(channel)
            for waiter in channel.waiters:
                waiter.wake(WakeCause.SAFETY)

    def session_deleted(self, session_id: str) -> None:
        channel = self._channels.get(session_id)
        if channel is None:
            return
        channel.finish_delivery()
        for waiter in channel.waiters:
            waiter.wake(WakeCause.DELETED)
        # They stay until they have gone: a socket that does not take its close frame must still be found.
        for subscriber in channel.subscribers:
            subscriber.close(CLOSE_SESSION_DELETED, "session deleted")
        channel.epoch, channel.seq, channel.last, channel.doubtful = None, 0, None, False
        channel.heard.clear()

    # Polls

    def add_waiter(self, session_id: str) -> Waiter:
        """Let a poll be woken from now on, until it is removed."""
        channel = self._channels.get(session_id)
        if channel is None:
            channel = self._channels[session_id] = _Channel()
        waiter = Waiter(self.waits)
        channel.waiters.add(waiter)
        self.waiters += 1
        if self.draining:
            waiter.wake(WakeCause.DRAIN)
        return waiter

    def remove_waiter(self, session_id: str, waiter: Waiter) -> None:
        """The poll has ended."""
        channel = self._channels[session_id]  # it cannot have gone: a poll was in it
        channel.waiters.remove(waiter)
        self.waiters -= 1
        self._drop_if_unused(session_id, channel)

    def admit_wait(self) -> None:
        """Raise TooManyPolls unless one of the registered polls may begin to wait."""
        if self.waiters > self._max_waiting_polls:
            raise TooManyPolls(f"this server lets at most {self._max_waiting_polls} polls wait")

    # Clients

    def subscribe(self, subscriber: Subscriber) -> None:
        """Let the client in, as lagging. Raises TooManySubscribers or Draining."""
        if self.draining:
            raise Draining
        if self.subscribers >= self._settings.max_subscribers:
            raise TooManySubscribers(f"this server has at most {self._settings.max_subscribers}")
        self._channels.setdefault(subscriber.session_id, _Channel()).subscribers.add(subscriber)
        self.subscribers += 1

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Let the client go, if it has not gone already."""
        channel = self._channels.get(subscriber.session_id)
        if channel is not None and subscriber in channel.subscribers:
            channel.subscribers.remove(subscriber)
            subscriber.live = False
            self.subscribers -= 1
            self._drop_if_unused(subscriber.session_id, channel)

    def go_live(self, subscriber: Subscriber) -> bool:
        """Feed the client from now on, if it has read everything that was announced.

        To be called in the same tick in which a read of the log came back empty; False means: read again.
        """
        channel = self._channels.get(subscriber.session_id)
        if channel is None or subscriber not in channel.subscribers or subscriber.close_code is not None:
            return False
        if channel.doubtful:
            return False
        if channel.epoch != subscriber.epoch:
            # The first to come, or the log began anew and its beginning was not heard: nobody is live in it yet.
            self._send_back_to_log(channel)
            channel.epoch, channel.seq, channel.last = subscriber.epoch, subscriber.position, None
            channel.heard.clear()
        elif channel.seq > subscriber.position:
            return False
        elif channel.seq < subscriber.position and not any(other.live for other in channel.subscribers):
            channel.seq, channel.last = subscriber.position, None  # the announcements in between were not heard
        subscriber.live = True
        if channel.delivery is not None and not channel.delivery.is_done:
            channel.delivery.join(subscriber)
        return True

    def doubted(self, session_id: str) -> Doubt | None:
        """What to look for in the log before it is trusted again; None if it is trusted."""
        channel = self._channels.get(session_id)
        if channel is None or not channel.doubtful or channel.epoch is None:
            return None
        return Doubt(channel.epoch, channel.seq, channel.last.data if channel.last else None)

    def trust(self, session_id: str) -> None:
        """The log was found to be the same as before, or has a new epoch."""
        if channel := self._channels.get(session_id):
            channel.doubtful = False

    def ping(self, frame: Frame) -> Iterator[None]:
        """Send every client a ping: some of them with each step, so that what they get can be written in between."""
        clients = [subscriber for channel in self._channels.values() for subscriber in channel.subscribers]
        for start in range(0, len(clients), PINGS_AT_A_TIME):
            for subscriber in clients[start : start + PINGS_AT_A_TIME]:
                subscriber.notify(frame)
            yield

    def close_stalled(self, now: float) -> None:
        """Close clients that have let a single write wait for too long; `now` is the loop's time."""
        limit = now - self._settings.send_timeout_seconds
        stalled = [
            subscriber
            for channel in self._channels.values()
            for subscriber in channel.subscribers
            if subscriber.writing_since is not None and subscriber.writing_since <= limit
        ]
        for subscriber in stalled:  # apart from the search: they leave at once
            subscriber.writing_since = None
            subscriber.stalled = True
            subscriber.close(CLOSE_SLOW, "too slow")
            subscriber.on_stalled()

    # All of them

    def drain(self) -> None:
        """Send every listener away, for the server stops; from now on nobody waits."""
        self.draining = True
        for channel in self._channels.values():
            channel.finish_delivery()
            for waiter in channel.waiters:
                waiter.wake(WakeCause.DRAIN)
            for subscriber in channel.subscribers:
                subscriber.close(CLOSE_RESTART, "server restarts")

    def listened(self) -> Collection[str]:
        """The sessions that somebody in this process listens to."""
        return self._channels.keys()

    def clients(self, session_id: str) -> int:
        """How many clients are connected."""
        channel = self._channels.get(session_id)
        return 0 if channel is None else len(channel.subscribers)

    def waiting(self, session_id: str) -> int:
        """How many polls wait."""
        channel = self._channels.get(session_id)
        return 0 if channel is None else len(channel.waiters)

    def places(self) -> dict[Place, int]:
        """The places of their sessions that the listeners of this process have taken."""
        clients = {(name, Seat.CLIENT): len(channel.subscribers) for name, channel in self._channels.items()}
        polls = {
            (name, Seat.POLL): sum(waiter.seated for waiter in channel.waiters)
            for name, channel in self._channels.items()
        }
        return {place: count for place, count in (clients | polls).items() if count}

    def _fan_out(self, channel: _Channel, epoch: str, entry: Entry) -> None:
        frame = Frame(message_frame(entry.data))
        delivery, clients = channel.delivery, channel.subscribers
        if delivery is None or delivery.is_done:
            if self._deliveries.queue_for_few(epoch, channel.seq, clients, entry.seq, frame):
                return
            delivery = channel.delivery = self._deliveries.begin(epoch, channel.seq, clients)
        delivery.add(entry.seq, frame)

    def _doubt(self, channel: _Channel) -> None:
        channel.doubtful = channel.epoch is not None
        self._send_back_to_log(channel)

    def _send_back_to_log(self, channel: _Channel) -> None:
        channel.finish_delivery()
        for subscriber in channel.subscribers:
            if subscriber.live:
                subscriber.fall_behind(channel.epoch, channel.seq)

    def _drop_if_unused(self, session_id: str, channel: _Channel) -> None:
        if not channel.waiters and not channel.subscribers:
            del self._channels[session_id]
