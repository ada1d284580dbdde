"""server/heads.py: the usual head of an answer is the one that any answer of its kind has."""

from __future__ import annotations

import pytest

from relay.server.heads import MAX_REMEMBERED_LENGTH, Heads
from relay.server.http import Answer

NOON = [(b"date", b"Tue, 17 Nov 2026 12:00:00 GMT"), (b"server", b"100%d")]
LATER = [(b"date", b"Tue, 17 Nov 2026 12:00:01 GMT")]


@pytest.mark.parametrize("length", [0, 2, 99, 100, MAX_REMEMBERED_LENGTH, MAX_REMEMBERED_LENGTH + 1, 70_000])
def test_the_usual_answer_looks_like_any_other(length: int) -> None:
    heads, body = Heads(), b"x" * length
    whole = heads.whole(Answer(200, body), NOON)
    assert heads.usual(body, NOON) == whole
    assert heads.usual(body, NOON) == whole, "also when it is remembered"


def test_each_second_has_its_own_heads() -> None:
    heads = Heads()
    first = heads.usual(b"{}", NOON)
    second = heads.usual(b"{}", LATER)
    assert b"12:00:00" in first
    assert b"12:00:01" in second
    assert heads.usual(b"{}", NOON) == first


def test_heads_of_long_answers_are_not_remembered() -> None:
    heads = Heads()
    for length in range(0, 4 * MAX_REMEMBERED_LENGTH, 64):
        heads.usual(b"x" * length, NOON)
    assert max(heads._usual) <= MAX_REMEMBERED_LENGTH
