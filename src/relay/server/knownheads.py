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

LEAST_BYTES = 16
"""No request is shorter."""

NAME_AT = 7
"""A head is looked up by this byte, in which the endpoints differ that are called most."""

HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)(?=[ \t]*(?:\r\n|$))", re.IGNORECASE)


class _Known:
    """A head, as it was when it last came: `head`, with which a request of `size` bytes begins."""

    __slots__ = ("_after_bytes", "_before_bytes", "head", "request", "size")

    def __init__(self, request: FastRequest, head: bytes, size: int, length: re.Match[bytes] | None) -> None:
        self.request = request
        self.head = head
        self.size = size
        # What stands before the length of the body and what behind it; 0 if it tells no length.
        self._before_bytes = 0 if length is None else length.start(1)
        self._after_bytes = 0 if length is None else len(head) - length.end(1)

    def fits(self, size: int) -> bool:
        """Whether a request of this size may begin with it; if so, it now tells the length that is right for that."""
        length = _length(size - self._before_bytes - self._after_bytes) if self._before_bytes else None
        if length is None:
            return False
        self.size = size
        self.head = self.head[: self._before_bytes] + length + self.head[-self._after_bytes :]
        return True


class KnownHeads:
    """Those of one connection."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[int, _Known] = {}

    def find(self, data: bytes) -> FastRequest | None:
        """The request, with its body, if the data is one whole request whose head is known."""
        size = len(data)
        known = self._heads.get(data[NAME_AT]) if size > LEAST_BYTES else None
        if known is None or (size != known.size and not known.fits(size)):
            return None
        head, request = known.head, known.request
        if not data.startswith(head):
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
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[data[NAME_AT]] = _Known(request, head + HEAD_END, len(data), length)


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
