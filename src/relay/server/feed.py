"""What one WebSocket client is told under an ASGI server: by its own task, or without waking it.

To wake a task for each frame costs as much as to send the frame. So a client that is live, and whose server takes what
it is given at once, is served from one place for all of them; its task sleeps, and is woken for everything else: a send
that has to wait, the log, the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.types import Send

from relay.core.relay import ClientGone, Relay
from relay.core.subscriber import Frame, Subscriber
from relay.server.drive import Waiting, begin
from relay.server.outbox import Outbox

GONE = (OSError, RuntimeError)
"""What `send` raises if the client is no longer there; RuntimeError if uvicorn has closed the connection itself."""


class Feed:
    """Sends a subscriber's frames, each once and in order."""

    __slots__ = (
        "_at_hand",
        "_begun",
        "_direct",
        "_failure",
        "_left",
        "_outbox",
        "_scheduled",
        "_send",
        "_subscriber",
    )

    def __init__(self, outbox: Outbox, send: Send, subscriber: Subscriber) -> None:
        self._outbox = outbox
        self._send = send
        self._subscriber = subscriber
        # A middleware's `send` may want a task or context of its own; a protocol object, such as uvicorn's, does not.
        self._direct = isinstance(getattr(send, "__self__", None), asyncio.BaseProtocol)
        self._at_hand: asyncio.Future[None] | None = None
        """What the task waits for while there is nothing that it alone can do."""
        self._scheduled = False
        self._begun: Coroutine[Any, Any, None] | None = None
        """The send that `write_now` could not finish, and `_left`, the frames behind it."""
        self._left: list[Frame] = []
        self._failure: Exception | None = None

    async def follow(self, relay: Relay) -> None:
        """Send whatever comes until the subscriber is closed. Raises ClientGone, and what reading the log raises."""
        subscriber = self._subscriber
        subscriber.waker = self._wake
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._begun is not None:
                    begun, self._begun = self._begun, None
                    await self._finish(begun)
                while frames := self._left or subscriber.take():
                    self._left = []
                    for frame in frames:
                        await self._tell(frame)
                if subscriber.close_code is not None:
                    return
                if subscriber.live:
                    await self._wait()
                else:
                    async for frame in relay.catch_up(subscriber):
                        await self._tell(frame)
        finally:
            subscriber.waker = None
            if self._begun is not None:
                self._begun.close()

    def write_now(self) -> None:
        """Send what is queued in place of the task, if it sleeps and there is nothing else to do."""
        self._scheduled = False
        at_hand, subscriber = self._at_hand, self._subscriber
        if at_hand is None or at_hand.done():
            return  # it is awake, and sees for itself
        if not self._direct or not subscriber.live:
            at_hand.set_result(None)
            return
        frames = subscriber.take()
        for sent, frame in enumerate(frames, start=1):
            try:
                begin(self._sending(frame))
            except Waiting as waiting:
                self._begun, self._left = waiting.rest, frames[sent:]
            except GONE:
                self._failure = ClientGone()
            except Exception as error:
                self._failure = error
            else:
                continue
            at_hand.set_result(None)
            return

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._outbox.add_socket(self)

    async def _wait(self) -> None:
        self._at_hand = asyncio.get_running_loop().create_future()
        try:
            await self._at_hand
        finally:
            self._at_hand = None

    async def _tell(self, frame: Frame) -> None:
        await self._finish(self._sending(frame))

    async def _finish(self, sending: Awaitable[None]) -> None:
        self._subscriber.writing_since = asyncio.get_running_loop().time()
        try:
            await sending
        except GONE:
            raise ClientGone from None
        self._subscriber.writing_since = None

    def _sending(self, frame: Frame) -> Any:
        return self._send({"type": "websocket.send", "text": frame.text})
