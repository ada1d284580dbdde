"""Heads of answers, as uvicorn would write them: for whoever writes to a connection without asking uvicorn to."""

from __future__ import annotations

from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from relay.server.http import JSON, Answer

MAX_REMEMBERED_LENGTH = 1_024
"""Answers to what is posted are shorter; the others take so long that their heads do not matter."""


class Heads:
    """Heads of answers. The usual ones are put together anew once a second, when uvicorn's date header changes."""

    def __init__(self) -> None:
        self._defaults: Sequence[tuple[bytes, bytes]] | None = None
        """The headers with which the usual ones were made."""
        self._usual: dict[int, bytes] = {}
        """By the length of the body."""
        self._start = b""

    def usual(self, body: bytes, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """A JSON answer with status 200, with its head and these headers of uvicorn's."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._usual.clear()
            self._start = STATUS_LINE[200] + _lines((*defaults, (b"content-type", JSON)))
        return (self._usual.get(len(body)) or self._make(len(body))) + body

    def _make(self, length: int) -> bytes:
        head = self._start + b"content-length: %d\r\ncache-control: no-store\r\n\r\n" % length
        if length <= MAX_REMEMBERED_LENGTH:
            self._usual[length] = head
        return head

    def whole(self, answer: Answer, defaults: Sequence[tuple[bytes, bytes]], *, close: bool = False) -> bytes:
        """Any answer that is not long, with its head."""
        assert isinstance(answer.body, bytes)
        return self.any(answer, len(answer.body), defaults, close=close) + answer.body

    def any(self, answer: Answer, length: int, defaults: Sequence[tuple[bytes, bytes]], *, close: bool) -> bytes:
        """The head of any answer."""
        described = ((b"content-type", answer.content_type), (b"content-length", b"%d" % length))
        end = ((b"connection", b"close"),) if close else ()
        every = (*defaults, *described, (b"cache-control", b"no-store"), *answer.headers, *end)
        return STATUS_LINE[answer.status] + _lines(every) + b"\r\n"


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


HEADS = Heads()
"""Those of this process."""
