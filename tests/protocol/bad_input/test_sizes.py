"""The bounds on size: what just fits is kept whole, one more byte is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocol.bad_input.conftest import Form, unharmed
from tests.protocol.talk import Talk, assert_error, ok

MAX_TEXT_BYTES = 131_072
MAX_METADATA_BYTES = 65_536
MAX_METADATA_DEPTH = 32
MAX_BODY_BYTES = 1_048_576

# The same 131,072 bytes of UTF-8, in characters and in JSON spellings of different length.
FULL = {
    "one-byte characters": ("a", "a"),
    "two-byte characters": ("é", "é"),
    "four-byte characters": ("😀", "😀"),
    "escaped one-byte characters": ("a", r"\u0061"),
    "escaped two-byte characters": ("é", r"\u00e9"),
    "escaped four-byte characters": ("😀", r"\ud83d\ude00"),
    "escaped NUL": ("\0", r"\u0000"),
}


def _times(character: str) -> int:
    return MAX_TEXT_BYTES // len(character.encode())


@pytest.mark.parametrize(("character", "spelling"), FULL.values(), ids=FULL)
def test_a_text_of_131072_bytes_is_kept(talk: Talk, form: Form, character: str, spelling: str) -> None:
    times = _times(character)
    ok(form.post(form.body(**{form.text_field: f'"{spelling * times}"'})))
    assert talk.messages()["messages"][-1]["data"][form.text_field] == character * times
    talk.round_trip()


@pytest.mark.parametrize(("character", "spelling"), FULL.values(), ids=FULL)
def test_a_text_of_131073_bytes_is_refused(talk: Talk, form: Form, character: str, spelling: str) -> None:
    with unharmed(talk):
        answer = form.post(form.body(**{form.text_field: f'"{spelling * _times(character)}x"'}))
        details = f"{form.text_field} is over {MAX_TEXT_BYTES} bytes of UTF-8"
        assert_error(answer, 400, "message_too_large", "Message exceeds size limit", details)


# Metadata


def _metadata(size: int) -> str:
    return f'{{"k":"{"x" * (size - len(_EMPTY))}"}}'


_EMPTY = '{"k":""}'


def _nested(depth: int, shape: str) -> str:
    """An object with `depth` levels of objects or arrays, itself included."""
    if shape == "objects":
        return '{"a":' * depth + "1" + "}" * depth
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def test_metadata_of_65536_bytes_is_kept(talk: Talk, form: Form) -> None:
    ok(form.post(form.body(metadata=_metadata(MAX_METADATA_BYTES))))
    assert len(talk.messages()["messages"][-1]["data"]["metadata"]["k"]) == MAX_METADATA_BYTES - len(_EMPTY)
    talk.round_trip()


def test_white_space_in_metadata_does_not_count(talk: Talk, form: Form) -> None:
    ok(form.post(form.body(metadata="{" + " " * MAX_METADATA_BYTES + '"k" : 1 }')))
    assert talk.messages()["messages"][-1]["data"]["metadata"] == {"k": 1}
    talk.round_trip()


@pytest.mark.parametrize("size", [MAX_METADATA_BYTES + 1, 10 * MAX_METADATA_BYTES])
def test_metadata_over_65536_bytes_is_refused(talk: Talk, form: Form, size: int) -> None:
    with unharmed(talk):
        answer = form.post(form.body(metadata=_metadata(size)))
        details = f"metadata is over {MAX_METADATA_BYTES} bytes of JSON"
        assert_error(answer, 400, "message_too_large", "Message exceeds size limit", details)


@pytest.mark.parametrize("shape", ["objects", "arrays"])
def test_metadata_nested_32_deep_is_kept(talk: Talk, form: Form, shape: str) -> None:
    ok(form.post(form.body(metadata=_nested(MAX_METADATA_DEPTH, shape))))
    talk.round_trip()


@pytest.mark.parametrize("shape", ["objects", "arrays"])
@pytest.mark.parametrize("depth", [MAX_METADATA_DEPTH + 1, 500])
def test_metadata_nested_deeper_is_refused(talk: Talk, form: Form, shape: str, depth: int) -> None:
    with unharmed(talk):
        answer = form.post(form.body(metadata=_nested(depth, shape)))
        details = f"metadata is nested deeper than {MAX_METADATA_DEPTH} levels"
        assert_error(answer, 400, "invalid_field", "Invalid request body", details)


def test_an_integer_of_4300_digits_in_metadata_is_kept(talk: Talk, form: Form) -> None:
    """The most that Python reads, and so every agent written in it."""
    ok(form.post(form.body(metadata=f'{{"n":{"7" * 4300}}}')))
    assert talk.messages()["messages"][-1]["data"]["metadata"] == {"n": int("7" * 4300)}
    talk.round_trip()


# The whole body


def _padded(form: Form, size: int) -> bytes:
    return form.body().ljust(size)


def _in_chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
def test_a_body_of_1_mib_is_accepted(talk: Talk, form: Form, chunked: bool) -> None:
    body = _padded(form, MAX_BODY_BYTES)
    ok(form.post(_in_chunks(body) if chunked else body))
    talk.round_trip()


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 3 * MAX_BODY_BYTES])
@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
def test_a_body_over_1_mib_is_refused(talk: Talk, form: Form, chunked: bool, size: int) -> None:
    with unharmed(talk):
        body = _padded(form, size)
        answer = form.post(_in_chunks(body) if chunked else body)
        details = f"the body is over {MAX_BODY_BYTES} bytes"
        assert_error(answer, 400, "message_too_large", "Message exceeds size limit", details)


def test_a_body_over_1_mib_is_too_large_before_its_content_type_is_wrong(talk: Talk, form: Form) -> None:
    with unharmed(talk):
        answer = form.post(_padded(form, MAX_BODY_BYTES + 1), {"content-type": "text/plain"})
        details = f"the body is over {MAX_BODY_BYTES} bytes"
        assert_error(answer, 400, "message_too_large", "Message exceeds size limit", details)
