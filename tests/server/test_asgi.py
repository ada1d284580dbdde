"""server/asgi.py: an answer in ASGI's words."""

from __future__ import annotations

import pytest
from starlette.types import Message

from relay.server.asgi import messages, send_answer
from relay.server.http import PIECE_BYTES, Answer, Reply, as_answer, in_parts

HALF = b"x" * (PIECE_BYTES // 2)


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (b"{}", [b"{}"]),
        (HALF * 5, [HALF * 5]),
        (in_parts([b"[", b"1", b"]"]), [b"[1]"]),
        (in_parts([HALF, HALF]), [HALF * 2]),
        (in_parts([HALF] * 5), [HALF * 2, HALF * 2, HALF, b""]),
    ],
)
def test_a_body_in_parts_is_sent_in_pieces_if_it_is_large(reply: Reply, sent: list[bytes]) -> None:
    start, *rest = messages(as_answer(reply))
    assert dict(start["headers"])[b"content-length"] == b"%d" % sum(map(len, sent))
    assert [message["body"] for message in rest] == sent
    assert [message.get("more_body", False) for message in rest] == [True] * (len(rest) - 1) + [False]


async def test_what_is_special_comes_after_what_every_answer_has() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await send_answer(Answer(429, b"{}", headers=((b"retry-after", b"1"),)), send, ((b"vary", b"origin"),))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 429
    assert sent[0]["headers"] == [
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"cache-control", b"no-store"),
        (b"retry-after", b"1"),
        (b"vary", b"origin"),
    ]


def test_an_answer_without_content_does_not_describe_it() -> None:
    start, end = messages(Answer(204, b""))
    assert start["headers"] == [(b"cache-control", b"no-store")]
    assert end["body"] == b""
