"""One connected client: where it stands in the log, and the frames that wait for it.

A subscriber is *live* (the hub feeds it) or *lagging* (it reads the log by itself, see `Relay.catch_up`). What it
does not take at once is queued; the queue is bounded, and what does not fit is not lost but read from the log later.
Knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

MAX_QUEUE_FRAMES = 256
MAX_QUEUE_BYTES = 1024**2

CLOSE_RESTART = 1012
CLOSE_TOKEN_EXPIRED = 4401
CLOSE_SESSION_DELETED = 4404
CLOSE_SLOW = 4008


class Frame(msgspec.Struct, eq=False, gc=False):
    """A WebSocket message, encoded once for all who get it."""

    data: bytes
    wire: bytes | None = None
    """The same as it goes over the wire; whoever sends the first one keeps it here for the others."""
    _text: str | None = None

    @property
    def text(self) -> str:
        """The same as a string, made once for all who ask."""
        if self._text is None:
            self._text = self.data.decode()
        return self._text


class Batch:
    """Answers that clients get together: those which come after the entry `after` of the log, oldest first."""

    __slots__ = ("_frames", "after", "answers", "last", "size", "wire")

    def __init__(self, after: int, answers: Sequence[tuple[int, Frame]]) -> None:
        self.after = after
        self.answers = answers
        """By seq."""
        self.last = answers[-1][0] if answers else after
        self.size = sum([len(frame.data) for _, frame in answers])
        self._frames: list[Frame] | None = None
        self.wire: bytes | None = None
        """All of it as it goes over the wire; whoever sends it first keeps it here for the others."""

    @property
    def frames(self) -> list[Frame]:
        """The answers alone, to be queued; the same list for all."""
        if self._frames is None:
            self._frames = [frame for _, frame in self.answers]
        return self._frames


class Subscriber:
    """A client's place in a session's log, its queue and its end."""

    __slots__ = (
        "_queue",
        "_queued_bytes",
        "_wakeup",
        "close_code",
        "close_reason",
        "epoch",
        "live",
        "on_stalled",
        "position",
        "session_id",
        "stalled",
        "waker",
        "writer",
        "writing_since",
    )

    def __init__(self, session_id: str, epoch: str | None, position: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.position = position
        """The seq up to which everything was passed on: from the log while it lags, else by the hub."""
        self.live = False
        self.close_code: int | None = None
        self.close_reason = ""
        self.writing_since: float | None = None
        """When the write that is under way began, by the loop's clock; set by whoever writes."""
        self.stalled = False
        """Whether a write took too long; then `on_stalled` was called, once."""
        self.on_stalled: Callable[[], object] = lambda: None
        self.waker: Callable[[], None] | None = None
        """Called when something was queued, or the state has changed."""
        self.writer: Callable[[Batch], bool] | None = None
        """Given a batch while nothing is queued: whether it could be written at once."""
        self._queue: list[Frame] = []
        self._queued_bytes = 0
        self._wakeup: asyncio.Future[None] | None = None

    def offer(self, batch: Batch) -> bool:
        """Pass the batch on, or queue it. False if there is no room: the client must go on as lagging."""
        if not self._queue and self.position <= batch.after and self.writer is not None and self.writer(batch):
            self.position = batch.last
            return True
        return self.queue(batch)

    def queue(self, batch: Batch) -> bool:
        """Queue the batch. False if there is no room, as above."""
        if self.position <= batch.after:
            added = self._add(batch.frames, batch.size)
        else:  # some of it was read from the log before it was announced
            frames = [frame for seq, frame in batch.answers if seq > self.position]
            added = self._add(frames, sum(len(frame.data) for frame in frames))
        if added:
            self.position = max(self.position, batch.last)
        return added

    def queue_answer(self, seq: int, frame: Frame) -> bool:
        """Queue the answer with this seq; False as above."""
        if seq <= self.position:
            return True  # read from the log before it was announced
        added = self._add([frame], len(frame.data))
        if added:
            self.position = seq
        return added

    def notify(self, frame: Frame) -> None:
        """Queue a frame that is not part of the log, such as a ping; dropped if there is no room."""
        self._add([frame], len(frame.data))

    def fall_behind(self, epoch: str | None, position: int) -> None:
        """Go on as lagging: everything up to `position` has been queued."""
        self.live = False
        self.epoch = epoch
        self.position = max(self.position, position)
        self._wake()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued; nothing more is fed. The first call counts."""
        if self.close_code is None:
            self.close_code = code
            self.close_reason = reason
            self.live = False
            self._wake()

    def take(self) -> list[Frame]:
        """All queued frames, oldest first."""
        frames = self._queue
        if frames:
            self._queue = []
            self._queued_bytes = 0
        return frames

    async def wait_idle(self, seconds: float) -> None:
        """Wait for a frame or the end, `seconds` at most, whatever the state."""
        if self._queue or self.close_code is not None:
            return
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None

    def _add(self, frames: Sequence[Frame], size: int) -> bool:
        """Whether there was room for all of them. An empty queue takes any: a message may be larger than the bound."""
        if not frames:
            return True
        queue = self._queue
        size += self._queued_bytes
        if queue and (len(queue) + len(frames) > MAX_QUEUE_FRAMES or size > MAX_QUEUE_BYTES):
            return False
        queue += frames
        self._queued_bytes = size
        self._wake()
        return True

    def _wake(self) -> None:
        if self.waker is not None:
            self.waker()
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
