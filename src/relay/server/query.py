"""Query parameters: strict, and every refusal names the parameter and its bounds."""

from __future__ import annotations

import math
import re
from urllib.parse import parse_qsl

from relay.errors import InvalidQuery

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader holds exactly."""

# Python's own int() and float() also take "1_0", " 1", "nan" and the digits of every script.
_INTEGER = re.compile(r"[0-9]{1,16}")
_NUMBER = re.compile(r"-?[0-9]{1,32}(\.[0-9]{0,32})?([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """The parameters of one request; those that nobody asks for are ignored."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        if raw:
            for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
                self._values.setdefault(name, []).append(value)

    def _value(self, name: str) -> str | None:
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidQuery(f"{name} is given twice")
        return values[0]

    def boolean(self, name: str, *, default: bool) -> bool:
        """True or false, also as 1 or 0."""
        value = self._value(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise InvalidQuery(f"{name} must be true or false")
        return _BOOLEANS[value.lower()]

    def integer(self, name: str, *, default: int, least: int, most: int = MAX_INTEGER) -> int:
        """A whole number within its bounds."""
        value = self._value(name)
        if value is None:
            return default
        if _INTEGER.fullmatch(value) is None or not least <= (number := int(value)) <= most:
            raise InvalidQuery(f"{name} must be an integer from {least} to {most}")
        return number

    def number(self, name: str, *, least: float = -math.inf, most: float = math.inf) -> int | float | None:
        """A finite number within its bounds; None if it is not given."""
        value = self._value(name)
        if value is None:
            return None
        bounds = f" from {least:g} to {most:g}" if math.isfinite(least) else ""
        if _NUMBER.fullmatch(value) is None or not math.isfinite(number := float(value)) or not least <= number <= most:
            raise InvalidQuery(f"{name} must be a finite number{bounds}")
        # Milliseconds beyond 2**53 would lose their last digits as a float.
        return int(value) if _INTEGER.fullmatch(value) else number
