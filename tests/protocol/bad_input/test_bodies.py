"""Bodies that are not JSON, or not the JSON that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.protocol.bad_input.conftest import Form, prompt_form, response_form, unharmed
from tests.protocol.talk import Talk, assert_error, ok

NOT_JSON = "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting"
ID_RULE = "must be 1 to 256 characters, without '/' or control characters, and not '.' or '..'"

Make = Callable[[Talk], Form]

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda good: b"",
    "white space": lambda good: b" \r\n\t",
    "cut short": lambda good: good[:-1],
    "cut short after a wrong type": lambda good: b'{"session_id":1,' + good[1:-1],
    "text after the end": lambda good: good + b"x",
    "two documents": lambda good: good + good,
    "trailing comma": lambda good: good[:-1] + b",}",
    "single quotes": lambda good: good.replace(b'"', b"'"),
    "comment": lambda good: b"/* hello */" + good,
    "form fields": lambda good: b"session_id=a&prompt=b&text=c&client_msg_id=d",
    "byte order mark": lambda good: b"\xef\xbb\xbf" + good,
    "UTF-16": lambda good: good.decode().encode("utf-16"),
    "UTF-16 little endian": lambda good: good.decode().encode("utf-16-le"),
    "UTF-16 big endian": lambda good: good.decode().encode("utf-16-be"),
    "UTF-32": lambda good: good.decode().encode("utf-32"),
    "Latin-1": lambda good: good[:-1] + ',"x":"é"}'.encode("latin-1"),
    "random bytes": lambda good: bytes(range(256)),
    "nested 100000 deep": lambda good: b"[" * 100_000 + b"]" * 100_000,
    "nested 100000 deep and cut short": lambda good: b"[" * 100_000,
    "objects nested 100000 deep": lambda good: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN)
def test_what_is_not_json_is_refused(talk: Talk, form: Form, spoil: Callable[[bytes], bytes]) -> None:
    with unharmed(talk):
        assert_error(form.post(spoil(form.body())), 400, "invalid_json", "Invalid JSON", NOT_JSON)


NOT_IN_JSON = {
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "lone high surrogate": rb'"\ud800"',
    "lone low surrogate": rb'"a\udc00b"',
    "swapped surrogates": rb'"\udc00\ud800"',
    "surrogate in bytes": b'"\xed\xa0\x80"',
    "byte that is not UTF-8": b'"\xff"',
    "bare control character": b'"\x01"',
    "unknown escape": rb'"\x41"',
    "leading zero": b"01",
    "100000 arrays": b"[" * 100_000 + b"]" * 100_000,
    "100000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}


@pytest.mark.parametrize("value", NOT_IN_JSON.values(), ids=NOT_IN_JSON)
def test_what_json_cannot_carry_is_refused_as_prompt_and_text(talk: Talk, form: Form, value: bytes) -> None:
    with unharmed(talk):
        answer = form.post(form.body(**{form.text_field: value}))
        assert_error(answer, 400, "invalid_json", "Invalid JSON", NOT_JSON)


@pytest.mark.parametrize("value", NOT_IN_JSON.values(), ids=NOT_IN_JSON)
def test_what_json_cannot_carry_is_refused_in_metadata(talk: Talk, form: Form, value: bytes) -> None:
    with unharmed(talk):
        answer = form.post(form.body(metadata=b'{"a":[1,{"b":%b}]}' % value))
        assert_error(answer, 400, "invalid_json", "Invalid JSON", NOT_JSON)


@pytest.mark.parametrize("value", NOT_IN_JSON.values(), ids=NOT_IN_JSON)
def test_what_json_cannot_carry_is_refused_in_a_field_that_is_ignored(talk: Talk, value: bytes) -> None:
    form = prompt_form(talk)
    with unharmed(talk):
        assert_error(form.post(form.body(other=value)), 400, "invalid_json", "Invalid JSON", NOT_JSON)


@pytest.mark.parametrize("value", [rb'{"\ud800":1}', b'{"\xff":1}'], ids=["lone surrogate", "not UTF-8"])
def test_a_key_of_metadata_that_json_cannot_carry_is_refused(talk: Talk, form: Form, value: bytes) -> None:
    with unharmed(talk):
        assert_error(form.post(form.body(metadata=value)), 400, "invalid_json", "Invalid JSON", NOT_JSON)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 5000, "-" + "1" * 5000], ids=lambda n: n[:6])
def test_absurd_numbers_in_metadata_are_refused(talk: Talk, form: Form, number: str) -> None:
    with unharmed(talk):
        answer = form.post(form.body(metadata=f'{{"a":[{number}]}}'))
        assert_error(answer, 400, "invalid_json", "Invalid JSON", "metadata holds what JSON cannot carry")


@pytest.mark.parametrize("body", ["[]", '"x"', "1", "true", "null", f"[{'1,' * 500_000}1]"], ids=lambda b: b[:4])
def test_a_body_that_is_not_an_object_is_refused(talk: Talk, form: Form, body: str) -> None:
    with unharmed(talk):
        answer = form.post(body.encode())
        assert_error(answer, 400, "invalid_field", "Invalid request body", "the body must be a JSON object")


# Fields


STRINGS = [
    (prompt_form, "session_id"),
    (prompt_form, "prompt"),
    (prompt_form, "client_msg_id"),
    (response_form, "session_id"),
    (response_form, "client_msg_id"),
    (response_form, "text"),
    (response_form, "assistant_msg_id"),
]
REQUIRED = [(make, field) for make, field in STRINGS if (make, field) != STRINGS[2] and field != "assistant_msg_id"]
IDS = [(make, field) for make, field in STRINGS if field.endswith("id")]


def _name(value: object) -> str | None:
    return {prompt_form: "prompt", response_form: "response"}.get(value) if callable(value) else None


@pytest.mark.parametrize("value", ["1", "true", "{}", '["x"]'])
@pytest.mark.parametrize(("make", "field"), STRINGS, ids=_name)
def test_a_field_that_must_be_a_string(talk: Talk, make: Make, field: str, value: str) -> None:
    form = make(talk)
    with unharmed(talk):
        answer = form.post(form.body(**{field: value}))
        assert_error(answer, 400, "invalid_field", "Invalid request body", f"{field} must be a string")


@pytest.mark.parametrize("value", ['"{}"', "1", "1.5", "true", "[]", "[{}]"])
def test_metadata_must_be_an_object(talk: Talk, form: Form, value: str) -> None:
    with unharmed(talk):
        answer = form.post(form.body(metadata=value))
        assert_error(answer, 400, "invalid_field", "Invalid request body", "metadata must be an object")


@pytest.mark.parametrize("value", ["true", "false", '"1"', "[1]", "{}"])
def test_ts_must_be_a_number(talk: Talk, form: Form, value: str) -> None:
    with unharmed(talk):
        answer = form.post(form.body(ts=value))
        assert_error(answer, 400, "invalid_field", "Invalid request body", "ts must be a number")


@pytest.mark.parametrize("value", ["-1", "-0.001", "-1e300", "8640000000000001", "8.640000000000001e15", "1e308"])
def test_ts_out_of_range(talk: Talk, form: Form, value: str) -> None:
    with unharmed(talk):
        details = "ts must be a number from 0 to 8.64e15 (Unix time in milliseconds)"
        assert_error(form.post(form.body(ts=value)), 400, "invalid_field", "Invalid request body", details)


@pytest.mark.parametrize("value", ["1e400", "-1e400", "1" * 5000, "-" + "1" * 5000], ids=lambda n: n[:6])
def test_ts_that_no_number_can_hold(talk: Talk, form: Form, value: str) -> None:
    with unharmed(talk):
        answer = form.post(form.body(ts=value))
        assert_error(answer, 400, "invalid_json", "Invalid JSON", NOT_JSON)


@pytest.mark.parametrize("ts", [0, 0.5, 8.64e15, 8640000000000000])
def test_ts_at_its_bounds_is_kept_as_given(talk: Talk, form: Form, ts: float) -> None:
    ok(form.post(form.body(ts=repr(ts))))
    assert talk.messages()["messages"][-1]["data"]["ts"] == ts
    talk.round_trip()


@pytest.mark.parametrize("null", [False, True], ids=["missing", "null"])
@pytest.mark.parametrize(("make", "field"), REQUIRED, ids=_name)
def test_a_required_field(talk: Talk, make: Make, field: str, null: bool) -> None:
    form = make(talk)
    with unharmed(talk):
        answer = form.post(form.body(**{field: "null"}) if null else form.without(field))
        assert_error(answer, 400, "missing_field", f"Missing required field: {field}", f"{field} is required")


@pytest.mark.parametrize(("make", "first"), [(prompt_form, "session_id"), (response_form, "session_id")], ids=_name)
def test_an_empty_object_misses_its_first_field(talk: Talk, make: Make, first: str) -> None:
    form = make(talk)
    with unharmed(talk):
        answer = form.post(b"{}")
        assert_error(answer, 400, "missing_field", f"Missing required field: {first}", f"{first} is required")


ODD_IDS = {
    "empty": '""',
    "257 characters": f'"{"x" * 257}"',
    "257 wide characters": f'"{"😀" * 257}"',
    "slash": '"a/b"',
    "dot": '"."',
    "two dots": '".."',
    "NUL": r'"a\u0000"',
    "newline": r'"a\n"',
    "DEL": r'"\u007f"',
    "C1 control character": r'"\u0085"',
}


@pytest.mark.parametrize("value", ODD_IDS.values(), ids=ODD_IDS)
@pytest.mark.parametrize(("make", "field"), IDS, ids=_name)
def test_an_odd_id(talk: Talk, make: Make, field: str, value: str) -> None:
    form = make(talk)
    with unharmed(talk):
        answer = form.post(form.body(**{field: value}))
        assert_error(answer, 400, "invalid_field", "Invalid request body", f"{field} {ID_RULE}")


@pytest.mark.parametrize("message_id", ["x" * 256, "😀" * 256, " ", "...", "%2F", "a\u2028b"], ids=ascii)
def test_an_unusual_id_that_is_allowed(talk: Talk, message_id: str) -> None:
    assert talk.prompt(client_msg_id=message_id) == message_id
    assert talk.pending_ids() == [message_id]
    assert talk.respond(message_id, assistant_msg_id=message_id) == message_id
    talk.round_trip()


# Content-Type


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
        "application/jsonl",
        "application/ld+json",
        "application/json, text/plain",
        "application / json",
        'application/"json"',
        "application/json; charset = latin-1",
        "application/json; charset=utf-8; charset=utf-16",
        "",
        None,
    ],
    ids=lambda t: "missing" if t is None else t or "empty",
)
def test_a_wrong_content_type(talk: Talk, form: Form, content_type: str | None) -> None:
    with unharmed(talk):
        answer = form.post(form.body(), {} if content_type is None else {"content-type": content_type})
        assert_error(
            answer,
            400,
            "unsupported_content_type",
            "Content-Type must be application/json",
            "send the header Content-Type: application/json",
        )


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", 'Application/JSON;Charset="UTF-8"', "application/json ;"],
)
def test_json_in_other_words_is_accepted(talk: Talk, form: Form, content_type: str) -> None:
    ok(form.post(form.body(), {"content-type": content_type}))
    talk.round_trip()
