"""Query parameters that are malformed or out of their bounds."""

from __future__ import annotations

import pytest

from tests.protocol.bad_input.conftest import unharmed
from tests.protocol.talk import Talk, assert_error

RULES = {
    "timeout": "timeout must be a finite number from 0 to 300",
    "wait": "wait must be true or false",
    "limit": "limit must be an integer from 1 to 1000",
    "offset": "offset must be an integer from 0 to 9007199254740991",
    "since": "since must be a finite number",
}
PATHS = {"timeout": "prompts", "wait": "prompts", "limit": "messages", "offset": "messages", "since": "messages"}
GOOD = {"timeout": "1", "wait": "false", "limit": "5", "offset": "5", "since": "5"}

# As they stand in the URL: a bare "+" is a space there.
NO_NUMBER = {
    "empty": "",
    "word": "ten",
    "nan": "nan",
    "inf": "inf",
    "negative inf": "-inf",
    "overflow": "1e400",
    "underscore": "1_0",
    "Arabic digit": "%D9%A1",
    "fullwidth digit": "%EF%BC%91",
    "plus": "%2B5",
    "bare plus": "+5",
    "newline after": "5%0A",
    "hexadecimal": "0x10",
    "true": "true",
    "not UTF-8": "%FF",
}
NO_INTEGER = NO_NUMBER | {"negative": "-1", "fraction": "1.5", "float": "5.0", "exponent": "1e2", "minus zero": "-0"}
BAD = {
    "timeout": NO_NUMBER | {"negative": "-1", "a little negative": "-0.001", "over": "301", "a little over": "300.001"},
    "wait": {name: NO_NUMBER[name] for name in ("empty", "word", "nan", "plus", "not UTF-8")}
    | {"yes": "yes", "on": "on", "two": "2", "minus one": "-1", "null": "null", "space": "+true"},
    "limit": NO_INTEGER | {"zero": "0", "over": "1001", "far over": "9" * 400},
    "offset": NO_INTEGER | {"over": "9007199254740992", "far over": "9" * 400},
    "since": NO_NUMBER | {"negative overflow": "-1e400", "400 digits": "9" * 400},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=f"{name}-{why}") for name, values in BAD.items() for why, value in values.items()],
)
def test_a_bad_value(talk: Talk, name: str, value: str) -> None:
    talk.prompt()
    with unharmed(talk):
        answer = talk.http.get(f"/{PATHS[name]}/{talk.session_id}?{name}={value}")
        assert_error(answer, 400, "invalid_query", "Invalid query parameter", RULES[name])


@pytest.mark.parametrize("name", RULES)
def test_a_parameter_without_a_value(talk: Talk, name: str) -> None:
    talk.prompt()
    with unharmed(talk):
        answer = talk.http.get(f"/{PATHS[name]}/{talk.session_id}?{name}")
        assert_error(answer, 400, "invalid_query", "Invalid query parameter", RULES[name])


@pytest.mark.parametrize("name", RULES)
def test_a_parameter_that_is_given_twice(talk: Talk, name: str) -> None:
    talk.prompt()
    with unharmed(talk):
        answer = talk.http.get(f"/{PATHS[name]}/{talk.session_id}?{name}={GOOD[name]}&{name}={GOOD[name]}")
        assert_error(answer, 400, "invalid_query", "Invalid query parameter", f"{name} is given twice")


@pytest.mark.parametrize("name", RULES)
def test_a_bad_value_is_told_before_the_session_is_looked_for(talk: Talk, name: str) -> None:
    with unharmed(talk):
        answer = talk.http.get(f"/{PATHS[name]}/{talk.session_id}?{name}=nan")
        assert_error(answer, 400, "invalid_query", "Invalid query parameter", RULES[name])


@pytest.mark.parametrize("name", ["limit", "offset"])
@pytest.mark.parametrize("value", ["", "-1", "1_0", "1.5", "nan"])
def test_a_bad_page_of_sessions(talk: Talk, name: str, value: str) -> None:
    with unharmed(talk):
        answer = talk.http.get(f"/sessions?{name}={value}")
        assert_error(answer, 400, "invalid_query", "Invalid query parameter", RULES[name])


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("prompts", "timeout=0"),
        ("prompts", "timeout=300&wait=false"),
        ("prompts", "timeout=0.001"),
        ("prompts", "wait=0"),
        ("prompts", "wait=False"),
        ("prompts", "wait=false&something=else"),
        ("messages", "limit=1&offset=0&since=0"),
        ("messages", "limit=1000"),
        ("messages", "offset=9007199254740991"),
        ("messages", "since=-1"),
        ("messages", "since=1.5e3"),
        ("messages", ""),
        ("messages", "&&=&"),
    ],
)
def test_a_value_at_its_bounds_is_accepted(talk: Talk, path: str, query: str) -> None:
    talk.prompt()
    with unharmed(talk):
        assert talk.http.get(f"/{path}/{talk.session_id}?{query}").status_code == 200
