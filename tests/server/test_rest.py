"""server/rest.py: what a poll is answered with."""

from __future__ import annotations

import pytest

from relay.models import PROMPT
from relay.server.http import PIECE_BYTES, as_answer
from relay.server.rest import _prompts
from relay.store.base import Entry

SHORT = b'{"prompt":"x"}'
LONG = b'{"prompt":"%b"}' % (b"x" * PIECE_BYTES)


@pytest.mark.parametrize(
    ("messages", "is_long"),
    [([], False), ([SHORT], False), ([SHORT, SHORT], False), ([LONG], True), ([SHORT, LONG, SHORT], True)],
    ids=["none", "one", "two", "one-long", "a-long-one-among-others"],
)
def test_prompts_are_a_list_and_a_long_one_is_sent_as_it_is_read(messages: list[bytes], is_long: bool) -> None:
    reply = _prompts([Entry(seq, PROMPT, 1, data) for seq, data in enumerate(messages, 1)])
    answer = as_answer(reply)
    assert answer.is_long is is_long
    parts = [answer.body] if isinstance(answer.body, bytes) else answer.body
    assert b"".join(parts) == b"[" + b",".join(messages) + b"]"
    assert any(part is LONG for part in parts) is is_long  # the stored message itself: nothing was copied
