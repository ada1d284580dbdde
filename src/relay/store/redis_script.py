"""What is said to Redis, in its own words (RESP): commands as bytes, and scripts by their hash.

    *2\\r\\n $3\\r\\nGET\\r\\n $5\\r\\nhello\\r\\n      without the blanks: how many parts, and each with its length

Whoever calls the same script again and again joins the parts by hand: most of them are the same each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import cast

import hiredis

Argument = bytes | str | int

# hiredis declares tuples of one element only.
_pack_command = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)


class Script:
    """A file of store/lua; `parts` are files that come before it and are shared with other scripts.

    `head` is how a call with so many keys and arguments begins: `packed` ones make it whole. `constants` are what would
    be the same argument in every call. Each other value of one is another script, which Redis keeps for ever.
    """

    def __init__(
        self,
        name: str,
        *parts: str,
        writes: bool = True,
        keys: int = 0,
        args: int = 0,
        constants: Mapping[str, str | int] = MappingProxyType({}),
    ) -> None:
        folder = resources.files("relay.store") / "lua"
        self.name = name
        self.writes = writes
        """Whether replicas may have to confirm it."""
        # What JSON makes of plain text, numbers and booleans is Lua too.
        given = [f"local {constant} = {json.dumps(value)}" for constant, value in constants.items()]
        files = [(folder / f"{part}.lua").read_text() for part in (*parts, name)]
        self.source = "\n".join([*given, *files]).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        self.head = b"*%d\r\n%b" % (3 + keys + args, packed(b"EVALSHA", self.sha, keys))

    def call(self, keys: Sequence[bytes], *args: Argument) -> bytes:
        """A call of the script by its hash."""
        return command(b"EVALSHA", self.sha, len(keys), *keys, *args)

    def with_source(self, call: bytes) -> bytes | None:
        """The same call with the script itself, for a server that does not know it; None if that is what it was."""
        head, sha, rest = call.partition(b"$40\r\n%b\r\n" % self.sha)
        if not sha:
            return None
        return b"%b\r\n%b%b" % (head.partition(b"\r\n")[0], packed(b"EVAL", self.source), rest)


def command(*parts: Argument) -> bytes:
    """A whole command."""
    return _pack_command(parts)


def packed(*parts: Argument) -> bytes:
    """Parts of a command, to be joined with others."""
    return _pack_command(parts).partition(b"\r\n")[2]
