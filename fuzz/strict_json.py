"""A second opinion on JSON: RFC 8259 to the letter, in Python.

The server's decoder is compiled, and a fuzzer that follows branches sees nothing of it. This reader says independently
what is JSON and what is not, and its branches lead the fuzzer through the grammar.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
"""Decoders differ in how much deeper than this they go; this one stops."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}


class NotJson(Exception):
    """It is not JSON, or not in UTF-8."""


class TooDeep(Exception):
    """It may be JSON or not: nobody looks that far."""


@dataclass
class Document:
    """What was read, and what about it decoders may see differently."""

    value: Any = None
    too_deep: bool = False
    doubled_keys: bool = False
    endless_number: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether every decoder must take it and see the same in it."""
        return not self.doubled_keys and not self.endless_number and not self.too_deep


def read(body: bytes) -> Document | None:
    """The document; None if it is not JSON."""
    try:
        return _Reader(body.decode()).read()
    except (UnicodeDecodeError, NotJson):
        return None
    except TooDeep:
        return Document(too_deep=True)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text + "\0"  # not JSON anywhere: nothing needs to ask whether the end has come
        self._at = 0
        self._document = Document()

    def read(self) -> Document:
        self._document.value = self._value(1)
        if self._skip() != "\0" or self._at != len(self._text) - 1:
            raise NotJson
        return self._document

    def _skip(self) -> str:
        """Pass over white space; the character behind it."""
        while self._text[self._at] in " \t\r\n":
            self._at += 1
        return self._text[self._at]

    def _value(self, depth: int) -> Any:
        first = self._skip()
        if first == '"':
            return self._string()
        if first == "{" or first == "[":
            if depth > MAX_DEPTH:
                raise TooDeep
            self._at += 1
            return self._object(depth) if first == "{" else self._array(depth)
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        return self._number()

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        if self._took("}"):
            return members
        while True:
            if self._skip() != '"':
                raise NotJson
            key = self._string()
            if not self._took(":"):
                raise NotJson
            self._document.doubled_keys |= key in members
            members[key] = self._value(depth + 1)
            if self._took("}"):
                return members
            if not self._took(","):
                raise NotJson

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        if self._took("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._took("]"):
                return items
            if not self._took(","):
                raise NotJson

    def _took(self, character: str) -> bool:
        took = self._skip() == character
        self._at += took
        return took

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise NotJson
        self._at = match.end()
        if match[2] is None and match[3] is None:
            return int(match[0])
        number = float(match[0])
        self._document.endless_number |= math.isinf(number)
        return number

    def _string(self) -> str:
        self._at += 1
        said: list[str] = []
        while (character := self._text[self._at]) != '"':
            self._at += 1
            if character < " ":
                raise NotJson
            said.append(self._escaped() if character == "\\" else character)
        self._at += 1
        return "".join(said)

    def _escaped(self) -> str:
        kind = self._text[self._at]
        self._at += 1
        if kind != "u":
            if kind not in _ESCAPES:
                raise NotJson
            return _ESCAPES[kind]
        unit = self._unit()
        if 0xDC00 <= unit < 0xE000:
            raise NotJson
        if not 0xD800 <= unit < 0xDC00:
            return chr(unit)
        if not self._text.startswith("\\u", self._at):
            raise NotJson
        self._at += 2
        low = self._unit()
        if not 0xDC00 <= low < 0xE000:
            raise NotJson
        return chr(0x10000 + (unit - 0xD800) * 0x400 + low - 0xDC00)

    def _unit(self) -> int:
        match = _HEX.match(self._text, self._at)
        if match is None:
            raise NotJson
        self._at += 4
        return int(match[0], 16)
