"""Heads of requests that need no parsing, as the parser has taken apart the very same bytes before.

Clients say the same again and again: all that differs between two prompts, or two polls, on one connection is the body
and the number after `Content-Length:`. Nothing is parsed here. A head is known if it is, byte for byte, one that the
parser has read on this connection, but for that number, which must be the length of what follows.
"""

from __future__ import annotations

import re
from functools import lru_cache

from relay.server.fastrequest import FastRequest

MAX_BODY_BYTES = 65_536
"""A longer body goes through the ASGI path, which reads it piece by piece."""

MAX_HEADS = 4
"""So many are remembered for a connection. An agent needs two: one for its polls, one for its answers."""

MAX_HEAD_BYTES = 4_096
"""A longer one is not remembered: what an idle connection holds must not be for strangers to say."""

NAME_BYTES = 12
"""A head is looked up by its first bytes, in which the endpoints differ."""

HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)(?=[ \t]*(?:\r\n|$))", re.IGNORECASE)

_Known = tuple[bytes, bytes | None, int, FastRequest]
"""What stands before the length and what behind it, and how long both are; the whole head and None if it has none."""


class KnownHeads:
    """Those of one connection."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, _Known] = {}

    def find(self, data: bytes) -> FastRequest | None:
        """The request, with its body, if the data is one whole request whose head is known."""
        known = self._heads.get(data[:NAME_BYTES])
        if known is None:
            return None
        before, after, size, request = known
        if after is None:
            if data != before:
                return None
        else:
            length = _length(len(data) - size)
            if length is None or not data.startswith(head := before + length + after):
                return None
            request.content = data[len(head) :]
        request.cycle = None  # that was the one before, which has been answered
        return request

    def learn(self, data: bytes, request: FastRequest) -> None:
        """Remember the head of a request, of which the parser has said that it is all of the data and nothing else."""
        if request.caller.expires is not None:
            return  # has to be looked at each time
        head, _, content = data.partition(HEAD_END)
        if len(head) > MAX_HEAD_BYTES:
            return
        length = _LENGTH.search(head)
        if (length[1] if length else b"0") != b"%d" % len(content):
            return  # written in another way, or with blank lines around it
        known: _Known = (data, None, len(data), request)
        if length is not None:
            before, after = head[: length.start(1)], head[length.end(1) :] + HEAD_END
            known = (before, after, len(before) + len(after), request)
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[data[:NAME_BYTES]] = known


@lru_cache(4_096)
def _length(size: int) -> bytes | None:
    """The length of a body, as its head tells it, if that number and the body have this size together.

    None if no length does, or if the body would be too long.
    """
    for digits in range(1, len(str(MAX_BODY_BYTES)) + 1):
        length = b"%d" % (size - digits)
        if len(length) == digits and 0 <= size - digits <= MAX_BODY_BYTES:
            return length
    return None
