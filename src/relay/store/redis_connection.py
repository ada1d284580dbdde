"""One connection to a Redis: who it is for, how it begins, and replies handed over as they arrive.

No task reads it: the loop hands over what has come, hiredis takes it apart, and each reply goes to its taker at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

import hiredis
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AskError, MovedError, NoScriptError, ReadOnlyError, ResponseError

from relay.store.redis_script import Argument, command
from relay.store.redis_url import RedisAddress

CONNECT_SECONDS = 2.0

Reply = Any

_LOST = "Redis has closed the connection"

_REFUSALS: dict[str, type[ResponseError]] = {
    "ASK": AskError,
    "MOVED": MovedError,
    "NOSCRIPT": NoScriptError,
    "READONLY": ReadOnlyError,
}


class Connection(asyncio.Protocol):
    """A connection that is ready; see `connect`."""

    def __init__(self) -> None:
        self._take: Callable[[Reply], None] = self._take_answer
        self._lost: Callable[[Exception], None] = self._take_answer
        self._reader = hiredis.Reader(replyError=_refusal)
        self._gone = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Reply] | None = None
        self._paused = False
        self._closed = False
        self._transport: asyncio.Transport

    def hand_over_to(self, take: Callable[[Reply], None], lost: Callable[[Exception], None]) -> None:
        """Call `take` with each reply, a refusal as a ResponseError, and `lost` once, unless it is closed by `close`.

        Raises ConnectionError if it is lost already.
        """
        if self._closed:
            raise ConnectionError(_LOST)
        self._take, self._lost = take, lost

    def write(self, data: bytes) -> None:
        """Send a command, or several."""
        self._transport.write(data)

    async def ask(self, *parts: Argument) -> Reply:
        """Before it is handed over: send a command and wait for its reply. Raises it if it is a refusal."""
        self._answer = asyncio.get_running_loop().create_future()
        self.write(command(*parts))
        return await self._answer

    def pause(self) -> None:
        """Hand over nothing more for now; Redis keeps what is still to come."""
        self._paused = True
        self._transport.pause_reading()

    def resume(self) -> None:
        """Go on with what has come meanwhile."""
        self._paused = False
        if not self._closed and not self._transport.is_closing():
            self._transport.resume_reading()
            self._hand_over()

    def close(self) -> None:
        """Hear and say no more."""
        self._closed = True
        self._transport.abort()

    def fail(self, reason: Exception) -> None:
        """Close it, as lost."""
        self.close()
        self._lost(reason)

    async def wait_closed(self) -> None:
        """Return when nothing is left of it."""
        await self._gone

    # What the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plain: socket.socket = transport.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._hand_over()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set_result(None)
        if not self._closed:
            self._closed = True
            self._lost(exc or ConnectionError(_LOST))

    # How the above is done

    def _hand_over(self) -> None:
        try:
            # In RESP2, which is what we speak, no reply is False: it means that there is none yet.
            while not self._paused and (reply := self._reader.gets()) is not False:
                self._take(reply)
                if self._closed:
                    return
        except Exception as exc:  # whatever it was, nobody may be left waiting
            self.fail(exc)

    def _take_answer(self, reply: Reply) -> None:
        if self._answer is None or self._answer.done():
            return
        if isinstance(reply, Exception):
            self._answer.set_exception(reply)
        else:
            self._answer.set_result(reply)


async def connect(address: RedisAddress, host: str, port: int) -> Connection:
    """A connection to one server, logged in. Raises whatever prevents it, after CONNECT_SECONDS at the latest."""
    try:
        return await asyncio.wait_for(_connect(address, host, port), CONNECT_SECONDS)
    except asyncio.TimeoutError:
        raise TimeoutError(f"no connection to {host}:{port} within {CONNECT_SECONDS:g} s") from None


async def _connect(address: RedisAddress, host: str, port: int) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, host, port, ssl=_tls(address))
    try:
        name, password = address.options.get("username"), address.options.get("password")
        if name or password:
            await connection.ask(b"AUTH", *([name] if name else []), password or b"")
        await connection.ask(b"CLIENT", b"SETNAME", b"relay")
        if address.db:
            await connection.ask(b"SELECT", address.db)
    except BaseException:
        connection.close()
        raise
    return connection


def _tls(address: RedisAddress) -> ssl.SSLContext | None:
    return SSLConnection(**address.options).ssl_context.get() if address.tls else None


def _refusal(text: str) -> ResponseError:
    code, _, rest = text.partition(" ")
    kind = _REFUSALS.get(code)
    return ResponseError(text) if kind is None else kind(rest)
