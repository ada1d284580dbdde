"""Query strings and the Content-Type: read strictly, refused with one of our errors."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from urllib.parse import unquote_plus

from relay.errors import InvalidQuery
from relay.server.query import MAX_INTEGER, Query
from relay.server.rest import MAX_LIMIT, MAX_TIMEOUT_SECONDS, _is_json

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*(?:(%b)=(%b|"[^"\\;]*"))?' % (_TOKEN, _TOKEN))
_JSON = re.compile(rb"application/json", re.IGNORECASE)


def query(raw: bytes) -> None:
    """The parameters that the endpoints ask for."""
    raw = raw.replace(b"\n", b"").replace(b"#", b"")  # neither can be part of a query
    asked = Query(raw)
    given = _given(raw)
    try:
        wait = asked.boolean("wait", default=True)
        assert "wait" not in given or given["wait"].lower() in (("true", "1") if wait else ("false", "0"))
    except InvalidQuery as error:
        _check(error, "wait", given)
    for name, default, least, most in (("limit", 100, 1, MAX_LIMIT), ("offset", 0, 0, MAX_INTEGER)):
        try:
            integer = asked.integer(name, default=default, least=least, most=most)
            assert least <= integer <= most
            assert name not in given or f"{integer}" == (given[name].lstrip("0") or "0")
        except InvalidQuery as error:
            _check(error, name, given)
    for name, low, high in (("timeout", 0.0, float(MAX_TIMEOUT_SECONDS)), ("since", -math.inf, math.inf)):
        try:
            number = asked.number(name, least=low, most=high)
            assert (number is None) == (name not in given)
            if number is not None:
                assert low <= number <= high
                assert math.isfinite(number)
                assert float(Fraction(given[name].rstrip("."))) == float(number) or "." in given[name]
        except InvalidQuery as error:
            _check(error, name, given)


def _given(raw: bytes) -> dict[str, str]:
    """The last value of each parameter, read in another way than the server does."""
    pairs = (part.partition("=") for part in raw.decode("latin-1").split("&") if part)
    return {unquote_plus(name): unquote_plus(value) for name, _, value in pairs}


def _check(error: InvalidQuery, name: str, given: dict[str, str]) -> None:
    assert name in given, "refused, but not given"
    assert str(error.details).startswith(f"{name} "), error.details


def content_type(value: bytes) -> None:
    """The guard against requests that a browser sends across sites without asking."""
    taken = _is_json(value)
    media, _, _ = value.partition(b";")
    right = _JSON.fullmatch(media.strip(b" \t"))
    assert right or not taken, "another type, but taken"
    if right and media == media.lstrip():
        charsets, at = [], right.end()
        while match := _PARAMETER.match(value, at):
            at = match.end()
            if match[1] is not None and match[1].lower() == b"charset":
                charsets.append(match[2].strip(b'"').lower())
        if value[at:].strip(b" \t") == b"" and len(charsets) < 2:
            assert taken == (charsets in ([], [b"utf-8"])), value
