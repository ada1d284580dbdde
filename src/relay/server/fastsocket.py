"""WebSocket clients of `relay serve`: the handshake, and what a client says, without a task per socket.

The rules are those of `ws.py`; `uvicorn main:app`, and a relay that agrees to compression, serve WebSockets from there.
What a client is told is in `fastfeed.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from websockets.utils import accept_key

from relay.core.subscriber import CLOSE_TOKEN_EXPIRED, Frame
from relay.errors import RelayError
from relay.server.allowance import Allowance
from relay.server.fastfeed import FastFeed, FastSockets
from relay.server.framing import CLOSE_NOT_UTF8, FrameError, FrameReader, Opcode, frame, read_close
from relay.server.guard import Head, subprotocol
from relay.server.peers import Leaving
from relay.server.protocols import response
from relay.server.ws import CLOSE_TOO_MANY, FRAMES_PER_TURN, NOT_TEXT, TOO_MANY, answer_client, subscribe

LEAVE_SECONDS = 1.0
"""How long what a client still sends is thrown away, after it broke the protocol, so that it can read why."""


class FastSocket(FastFeed):
    """One client, from the handshake to the end."""

    __slots__ = ("_allowance", "_deaf", "_reader")

    def __init__(
        self,
        hall: FastSockets,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        connections: set[Any],
        tasks: set[Any],
    ) -> None:
        super().__init__(hall, transport, loop, connections, tasks)
        self._reader = FrameReader(hall.max_frame_bytes)
        self._allowance = Allowance(hall.peers.max_frames_per_second, self._heard_at)
        self._deaf = False
        """Whether what still comes is thrown away: the client broke the protocol."""

    # The handshake

    def open(self, head: Head, query: bytes, key: bytes) -> None:
        """Let the client in, or refuse it with a real HTTP status."""
        if self._run(self._open(head, query, key)) is not None:
            self._transport.pause_reading()  # what it sends before it was answered waits

    async def _open(self, head: Head, query: bytes, key: bytes) -> None:
        hall = self._hall
        try:
            caller = await hall.guard.check_socket(head, query)
            subscriber = await subscribe(hall.relay, head.session_id)
        except RelayError as error:
            hall.telemetry.request_refused(error)
            self._connections.discard(self)
            if not self._ended:
                Leaving(self._transport, hall.peers, response(error), wait=False)
            return
        self.subscriber = subscriber
        if self._ended or self._leaving is not None:  # gone meanwhile
            await hall.relay.unsubscribe(subscriber)
            return
        chosen = subprotocol(head.headers)
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n%b\r\n"
            % (
                accept_key(key.decode()).encode(),
                b"Sec-WebSocket-Protocol: %b\r\n" % chosen.encode() if chosen else b"",
            )
        )
        hall.telemetry.client_connected(head.session_id)
        if caller.expires is not None:
            seconds = caller.expires - hall.now_ms() / 1000
            self._expiry = self.loop.call_later(seconds, subscriber.close, CLOSE_TOKEN_EXPIRED, "token expired")
        subscriber.waker = self.wake
        subscriber.writer = self.write
        subscriber.on_stalled = self._stalled
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if not self._paused:
            self._calm_down()
        self.write_now()

    # From the client

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        self._pinged = False
        if not self._deaf:
            self._hear_some(self._reader.read(data))

    def _hear_some(self, messages: Iterator[tuple[Opcode, bytes] | None]) -> None:
        """Hear what the client says, a little at a time: one read may hold 40,000 pings."""
        if self._ended:
            return
        try:
            for count, message in enumerate(messages, start=1):
                if self._leaving is None and not self._allowance.take(1, self._heard_at):
                    raise FrameError(CLOSE_TOO_MANY, TOO_MANY)
                if message is not None:
                    self._hear(*message)
                if count == FRAMES_PER_TURN:
                    self._transport.pause_reading()
                    self.loop.call_soon(self._hear_some, messages)
                    return
        except FrameError as error:
            self._deaf = True
            if self._leaving is None:
                self._leave(error.code, error.reason)
            self._transport.write_eof()
            self.loop.call_later(LEAVE_SECONDS, self._transport.abort)
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _hear(self, opcode: Opcode, payload: bytes) -> None:
        if opcode is Opcode.CLOSE:
            code = read_close(payload)
            if self._leaving is None:
                self._leave(code, "")
            self._transport.close()
        elif self._leaving is not None:
            return
        elif opcode is Opcode.PING:
            if not self._paused:  # pongs for a peer that does not read would pile up
                self._transport.write(frame(Opcode.PONG, payload))
        elif opcode is Opcode.BINARY:
            self._notify(NOT_TEXT)
        elif opcode is Opcode.TEXT:
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                raise FrameError(CLOSE_NOT_UTF8, "not UTF-8") from None
            if (reply := answer_client(text, self._hall.now_ms())) is not None:
                self._notify(reply)

    def _notify(self, reply: Frame) -> None:
        assert self.subscriber is not None
        self.subscriber.notify(reply)
