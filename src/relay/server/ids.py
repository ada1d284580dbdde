"""Makes ids for messages that come without one: UUIDs v4, as the specification asks."""

from __future__ import annotations

import os
from collections.abc import Iterator

IDS_AT_A_TIME = 64
"""A system call for each would take longer than the rest of the making."""

_DIGITS = 32
_VARIANT = {digit: "89ab"[number % 4] for number, digit in enumerate("0123456789abcdef")}
"""What becomes of the digit whose first two bits say that it is a UUID of RFC 9562."""


class Ids:
    """Gives them one at a time, and makes many."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def __call__(self) -> str:
        if not self._made:
            self._made.extend(_make_some())
        return self._made.pop()


def _make_some() -> Iterator[str]:
    # By hand: the standard library takes three times as long, half as long as all else that a message needs.
    random = os.urandom(IDS_AT_A_TIME * _DIGITS // 2).hex()
    for start in range(0, len(random), _DIGITS):
        it = random[start : start + _DIGITS]
        yield f"{it[:8]}-{it[8:12]}-4{it[13:16]}-{_VARIANT[it[16]]}{it[17:20]}-{it[20:]}"
