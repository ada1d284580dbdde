"""Makes ids for messages that come without one: UUIDs v4, as the specification asks."""

from __future__ import annotations

import os
import struct
from binascii import hexlify

IDS_AT_A_TIME = 64
"""A system call for each would take longer than the rest of the making."""

_BYTES = 16
_VERSION = bytes(0x40 | number & 0x0F for number in range(256))
_VARIANT = bytes(0x80 | number & 0x3F for number in range(256))
"""What becomes of the bytes whose first bits say that it is a UUID of RFC 9562, version 4."""

_GROUPS = struct.Struct("8s4s4s4s12s")


class Ids:
    """Gives them one at a time, and makes many."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def __call__(self) -> str:
        if not self._made:
            self._made = _make_some()
        return self._made.pop()


def _make_some() -> list[str]:
    # By hand, and all at once: the standard library takes ten times as long, as long as all else that a message needs.
    random = bytearray(os.urandom(IDS_AT_A_TIME * _BYTES))
    random[6::_BYTES] = random[6::_BYTES].translate(_VERSION)
    random[8::_BYTES] = random[8::_BYTES].translate(_VARIANT)
    return [b"-".join(groups).decode() for groups in _GROUPS.iter_unpack(hexlify(random))]
