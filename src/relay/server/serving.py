"""Calls endpoints for a connection and writes their answers, without an ASGI cycle.

An endpoint that may have to wait is a coroutine, which is driven by hand. Most end at once; one that waits goes on in a
callback of whatever it waits for. A task would cost more than the endpoint does; so no endpoint may ask for the current
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from types import CoroutineType
from typing import Any

from relay.core.relay import ClientGone
from relay.errors import RelayError
from relay.server.asgi import AsgiDoor, pieces
from relay.server.drive import runner
from relay.server.fastfeed import SOCKETS_KEY
from relay.server.fastrequest import FastCycle, FastRequest
from relay.server.heads import HEADS
from relay.server.http import INTERNAL_ERROR, PIECE_BYTES, Answer, Reply, as_answer, error_answer
from relay.server.outbox import Outbox
from relay.server.protocols import HttpProtocol

DOOR_KEY = "relay.door"
"""Where a protocol object finds the endpoints in the state that the application gives to its server."""


class Serving(HttpProtocol):
    """What the fast door does with a request once it has arrived."""

    __slots__ = ("_door", "_heads", "_outbox", "_read", "_runner", "_unsent")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outbox: Outbox = self.app_state[SOCKETS_KEY].outbox
        self._door: AsgiDoor = self.app_state[DOOR_KEY]
        self._heads = HEADS
        self._runner = runner()
        """One is enough: while an endpoint waits nothing else is served here."""
        self._unsent = b""
        self._read: FastRequest | None = None
        """The request that has been read and is to be served."""

    def serve(self) -> None:
        """Call the endpoint of what has been read; answer at once if it need not wait, as most do."""
        request, self._read = self._read, None
        assert request is not None
        endpoint = request.endpoint  # what is called in the same step Python takes for a method, and looks for longer
        try:
            result: object = endpoint(request)
            if type(result) is CoroutineType:
                result = self._runner.send(result)
        except Exception as error:
            result = self._refusal(error)
        request.content = b""  # not kept: the connection may be idle for long
        if type(result) is bytes:
            data = self._heads.usual(result, self.server_state.default_headers)
        elif type(result) is not Answer:
            self.cycle = cycle = request.waiting()  # type: ignore[assignment]  # others queue behind it
            self._wait(result, cycle)
            return
        elif result.is_long:
            self.cycle = cycle = FastCycle()  # type: ignore[assignment]
            self._start(self._send_pieces(result, cycle))
            return
        else:
            data = self._whole(result, close=False)
        if not self._unsent:
            self._unsent = data
            self._outbox.add_asked(self)
            return
        self._unsent += data
        if len(self._unsent) > PIECE_BYTES:
            self.write_now()  # many requests in one piece: only what is written counts as unread

    def _wait(self, waits_for: object, cycle: FastCycle) -> None:
        go_on = partial(self._go_on, cycle)
        then = getattr(waits_for, "then", None)
        if then is not None:  # a poll that waits, or a store's call: it needs no further turn of the loop
            then(go_on)
        elif isinstance(waits_for, asyncio.Future):
            waits_for.add_done_callback(go_on)
        else:  # it only lets others have a turn
            self.loop.call_soon(go_on)

    def _go_on(self, cycle: FastCycle, _: object = None) -> None:
        """Go on with an endpoint that has waited."""
        try:
            result = self._runner.send(None)
        except ClientGone:
            return
        except (Exception, asyncio.CancelledError) as error:  # there is no task: only what it waited for was cancelled
            self._answer_late(self._refusal(error), cycle)
            return
        if isinstance(result, bytes) or type(result) is Answer:
            self._answer_late(result, cycle)
        else:
            self._wait(result, cycle)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _refusal(self, error: BaseException) -> Answer:
        self._runner = runner()  # the error has ended it, if it came from there
        if isinstance(error, RelayError):
            self._door.telemetry.request_refused(error)
            return error_answer(error)
        self._door.telemetry.internal_error(error)
        return INTERNAL_ERROR

    def _answer_late(self, answer: Reply, cycle: FastCycle) -> None:
        """Answer a request that has waited."""
        if cycle.disconnected or self.transport.is_closing():
            return
        if self.flow.write_paused or (not isinstance(answer, bytes) and answer.is_long):
            self._start(self._send_pieces(answer, cycle))
            return
        if isinstance(answer, bytes) and cycle.keep_alive:
            self._unsent += self._heads.usual(answer, self.server_state.default_headers)
        else:
            self._unsent += self._whole(as_answer(answer), close=not cycle.keep_alive)
        self._outbox.add_waited(self)
        self._end(cycle)

    async def _send_pieces(self, reply: Reply, cycle: FastCycle) -> None:
        """Send a long answer as fast as the peer reads it."""
        answer = as_answer(reply)
        parts = [answer.body] if isinstance(answer.body, bytes) else answer.body
        head = self._head(answer, sum(map(len, parts)), close=not cycle.keep_alive)
        self.write_now()
        cycle.response_started = True
        for piece in pieces([head, *parts]):
            if self.flow.write_paused:
                await self.flow.drain()
            if cycle.disconnected:
                return
            self.transport.write(piece)
        self._end(cycle)

    def _end(self, cycle: FastCycle) -> None:
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.write_now()
            self.transport.close()
        self.on_response_complete()

    def _head(self, answer: Answer, length: int, *, close: bool) -> bytes:
        return self._heads.any(answer, length, self.server_state.default_headers, close=close)

    # Writing

    def _whole(self, answer: Answer, *, close: bool) -> bytes:
        """An answer that is not the usual one, as it goes over the wire."""
        return self._heads.whole(answer, self.server_state.default_headers, close=close)

    def write_now(self) -> None:
        """Write what is due at the end of this turn. To be called before anything else is written or closed."""
        data, self._unsent = self._unsent, b""
        transport = self.transport
        if data and not transport.is_closing():
            transport.write(data)

    def _leave(self, error: RelayError, *, wait: bool = False) -> None:
        self.write_now()
        super()._leave(error, wait=wait)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.write_now()  # it writes by itself
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        self.write_now()
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        self.write_now()
        super().shutdown()
