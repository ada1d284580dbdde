"""wire.py and models.py: the compiled decoder and the Pydantic models take and refuse the same bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from relay.errors import InvalidField, InvalidJson, MessageTooLarge, MissingField, RelayError
from relay.models import (
    DEFAULT_BOUNDS,
    MAX_TEXT_BYTES,
    AssistantMessage,
    MetadataBounds,
    PromptIn,
    PromptMessage,
    ResponseIn,
    check_id,
)
from relay.wire import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    Meaning,
    decode_prompt,
    decode_response,
    encode_message,
    fingerprint,
    meaning,
)

Body = dict[str, Any]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)
ids = st.one_of(st.just("s1"), st.sampled_from(["", ".", "..", "a/b", "x" * 256, "x" * 257, "a\x00", "é"]), text)
times = st.one_of(st.integers(-10, 10**17), st.floats(-1, 1e17), st.sampled_from([0, 8.64e15, 8.640001e15, True, "1"]))
metadata = st.one_of(st.none(), st.dictionaries(text, json_values, max_size=4), json_values)


def bodies(*required: str) -> st.SearchStrategy[Body]:
    """Bodies that are often right, and often wrong in one place."""
    right = {"session_id": ids, "client_msg_id": ids, "assistant_msg_id": ids, "prompt": text, "text": text}
    known = {name: strategy for name, strategy in right.items() if name in required}
    optional = {
        "client_msg_id": ids | st.none(),
        "assistant_msg_id": ids | st.none(),
        "metadata": metadata,
        "ts": times,
    }
    optional = {name: strategy for name, strategy in optional.items() if name not in required}
    whole = st.fixed_dictionaries(known, optional=optional | {"unknown": json_values})
    return whole | st.builds(
        lambda body, name, value: {**body, name: value}, whole, st.sampled_from([*known, *optional]), json_values
    )


def outcome(read: Callable[[bytes], object], body: bytes) -> bool:
    """Whether the body is accepted. Only the errors we know may be raised."""
    try:
        read(body)
    except (RelayError, ValidationError):
        return False
    return True


def agree(decode: Callable[[bytes], object], model: type[BaseModel], body: Body) -> None:
    raw = json.dumps(body).encode()
    assert outcome(decode, raw) == outcome(model.model_validate_json, raw), raw


@settings(max_examples=1_000, deadline=None)
@given(bodies("session_id", "prompt"))
@example({"session_id": "s1", "prompt": "x" * (MAX_TEXT_BYTES + 1)})
@example({"session_id": "s1", "prompt": "é" * (MAX_TEXT_BYTES // 2)})
@example({"session_id": "s1", "prompt": "x", "metadata": {"x": "x" * DEFAULT_BOUNDS.max_bytes}})
@example({"session_id": "s1", "prompt": "x", "ts": 10**400})
def test_both_take_and_refuse_the_same_prompts(body: Body) -> None:
    agree(decode_prompt, PromptIn, body)


@settings(max_examples=1_000, deadline=None)
@given(bodies("session_id", "client_msg_id", "text"))
def test_both_take_and_refuse_the_same_responses(body: Body) -> None:
    agree(decode_response, ResponseIn, body)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_no_bytes_raise_anything_but_our_errors(raw: bytes) -> None:
    outcome(decode_prompt, raw)
    outcome(decode_response, b'{"session_id":"s","client_msg_id":"c","text":"t","metadata":' + raw + b"}")


@settings(max_examples=300, deadline=None)
@given(text, st.dictionaries(text, json_values, max_size=4), st.integers(0, 8_640_000_000_000_000))
def test_what_is_accepted_is_served_again_as_the_specification_shows_it(prompt: str, meta: Body, ts: int) -> None:
    body = {"session_id": "s1", "client_msg_id": "p1", "prompt": prompt, "metadata": meta, "ts": ts}
    raw = json.dumps(body).encode()
    if not outcome(decode_prompt, raw):
        return  # an integer beyond what JSON readers take
    served = encode_message(decode_prompt(raw))
    assert json.loads(served) == body
    PromptMessage.model_validate_json(served)


def test_the_keys_of_a_message_come_in_the_specifications_order() -> None:
    prompt = decode_prompt(b'{"ts":5,"metadata":{"a": 1},"prompt":"x","client_msg_id":"p1","session_id":"s1"}')
    assert encode_message(prompt) == b'{"session_id":"s1","client_msg_id":"p1","prompt":"x","metadata":{"a":1},"ts":5}'
    response = decode_response(b'{"text":"y","assistant_msg_id":"a1","session_id":"s1","client_msg_id":"p1","ts":6}')
    encoded = encode_message(response)
    assert encoded == b'{"session_id":"s1","assistant_msg_id":"a1","client_msg_id":"p1","text":"y","ts":6}'
    AssistantMessage.model_validate_json(encoded)


def nested(depth: int) -> bytes:
    return b'{"session_id":"s","prompt":"p","metadata":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


def test_metadata_may_be_nested_so_deep_and_no_deeper() -> None:
    decode_prompt(nested(DEFAULT_BOUNDS.max_depth))
    PromptIn.model_validate_json(nested(DEFAULT_BOUNDS.max_depth))
    with pytest.raises(InvalidField):
        decode_prompt(nested(DEFAULT_BOUNDS.max_depth + 1))
    with pytest.raises(InvalidField):
        PromptIn.model_validate_json(nested(DEFAULT_BOUNDS.max_depth + 1))
    with pytest.raises(InvalidJson):
        decode_prompt(nested(100_000))


def test_arrays_count_as_levels_too() -> None:
    deep = b"[" * DEFAULT_BOUNDS.max_depth + b"]" * DEFAULT_BOUNDS.max_depth
    with pytest.raises(InvalidField, match="nested deeper"):
        decode_prompt(b'{"session_id":"s1","prompt":"x","metadata":{"a":%b}}' % deep)


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\r", b"\t"])
def test_metadata_is_kept_without_any_blank_between_its_parts(blank: bytes) -> None:
    prompt = decode_prompt(b'{"session_id":"s1","prompt":"x","metadata":{"a":%b1}}' % blank)
    assert b'"metadata":{"a":1}' in encode_message(prompt)


def with_metadata(metadata: bytes) -> bytes:
    return b'{"session_id":"s1","prompt":"x","metadata":%b}' % metadata


def test_metadata_that_was_checked_before_is_checked_again_under_other_bounds() -> None:
    body = with_metadata(b'{"a":{"b":[1, 2]}}')
    wide, short, flat = MetadataBounds(), MetadataBounds(max_bytes=16), MetadataBounds(max_depth=2)
    for _ in range(2):
        assert b'"metadata":{"a":{"b":[1,2]}}' in encode_message(decode_prompt(body, wide))
        with pytest.raises(MessageTooLarge):
            decode_prompt(body, short)
        with pytest.raises(InvalidField, match="nested deeper"):
            decode_prompt(body, flat)


def test_only_short_metadata_is_remembered() -> None:
    bounds = MetadataBounds()
    empty = len(b'{"a":""}')
    for length in (MAX_REMEMBERED_BYTES + 1, 60_000):
        decode_prompt(with_metadata(b'{"a":"%b"}' % (b"x" * (length - empty))), bounds)
    assert bounds.checked == {}
    short = b'{"a":"%b"}' % (b"x" * (MAX_REMEMBERED_BYTES - empty))
    first, again = (decode_prompt(with_metadata(short), bounds).metadata for _ in range(2))
    assert first is again


def test_only_so_much_metadata_is_remembered() -> None:
    bounds = MetadataBounds()
    for number in range(2 * MAX_REMEMBERED + 1):
        decode_prompt(with_metadata(b'{"a":%d}' % number), bounds)
        assert len(bounds.checked) <= MAX_REMEMBERED


CONTROL = [*range(0x20), *range(0x7F, 0xA0)]


@given(st.text(st.characters(max_codepoint=0x17F), max_size=4) | st.text(st.sampled_from("a-/.\x7f\n é"), max_size=260))
@example("")
@example(".")
@example("..")
@example("...")
@example("a/b")
@example("ab\x7f")
@example("x" * 256)
@example("x" * 257)
def test_an_id_is_1_to_256_characters_without_slash_or_control_characters_and_not_dots(value: str) -> None:
    allowed = 1 <= len(value) <= 256 and "/" not in value and value not in (".", "..")
    allowed = allowed and not any(ord(character) in CONTROL for character in value)
    if allowed:
        check_id(value, "session_id")
    else:
        with pytest.raises(InvalidField):
            check_id(value, "session_id")


def test_nothing_but_finite_numbers_gets_into_the_models_either() -> None:
    with pytest.raises(ValidationError):
        PromptIn.model_validate({"session_id": "s", "prompt": "p", "metadata": {"a": [float("nan")]}})


@pytest.mark.parametrize(
    ("body", "error", "details"),
    [
        (b"{}", MissingField, "session_id is required"),
        (b'{"session_id":"s"}', MissingField, "prompt is required"),
        (b'{"session_id":"s","prompt":null}', MissingField, "prompt is required"),
        (b'{"session_id":1,"prompt":"p"}', InvalidField, "session_id must be a string"),
        (b'{"session_id":"s","prompt":"p","ts":"1"}', InvalidField, "ts must be a number"),
        (b'{"session_id":"s","prompt":"p","metadata":[]}', InvalidField, "metadata must be an object"),
        (b'{"session_id":"s","prompt":"p","metadata":"x"}', InvalidField, "metadata must be an object"),
        (b"[]", InvalidField, "the body must be a JSON object"),
        (b'"x"', InvalidField, "the body must be a JSON object"),
        (
            b'{"session_id":1',
            InvalidJson,
            "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting",
        ),
        (
            b'{"session_id":"s","prompt":"p","ts":1e400}',
            InvalidJson,
            "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting",
        ),
        (
            b'{"session_id":"s","prompt":"p","metadata":{"a":1e400}}',
            InvalidJson,
            "metadata holds what JSON cannot carry",
        ),
        (
            b'{"session_id":"s","prompt":"p","u":"\xff"}',
            InvalidJson,
            "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting",
        ),
    ],
)
def test_a_refusal_names_the_field(body: bytes, error: type[RelayError], details: str) -> None:
    with pytest.raises(error) as refused:
        decode_prompt(body)
    assert refused.value.details == details


def test_size_is_counted_in_bytes_of_utf8() -> None:
    decode_prompt(json.dumps({"session_id": "s", "prompt": "é" * 65_536}).encode())
    with pytest.raises(MessageTooLarge):
        decode_prompt(json.dumps({"session_id": "s", "prompt": "é" * 65_536 + "x"}).encode())


# What a response says


def what(client_msg_id: str = "p1", said: str = "x", meta: str = "") -> Meaning:
    body = json.dumps({"session_id": "s", "client_msg_id": client_msg_id, "text": said})
    return meaning(decode_response((body[:-1] + (f',"metadata":{meta}' if meta else "") + "}").encode()))


def test_two_spellings_of_the_same_have_the_same_meaning() -> None:
    assert what() == what(meta="null")
    assert what(meta='{"a":1,"b":[1.50,"é"]}') == what(meta='{ "b":[1.5,"\\u00e9"], "a":1 }')


def test_another_meaning_is_another_and_has_another_fingerprint() -> None:
    metas = [
        "",
        "{}",
        '{"a":1}',
        '{"a":1.0}',
        '{"a":true}',
        '{"a":"1"}',
        '{"a":null}',
        '{"a":[1]}',
        '{"a":18446744073709551617}',
    ]
    all_of_them = [what(meta=meta) for meta in metas]
    all_of_them += [what(said="y"), what("p2"), what("p1x", ""), what("p", "1x"), what(said='x{"a":1}')]
    assert len(set(all_of_them)) == len(all_of_them)
    assert len(set(map(hash, all_of_them))) == len(all_of_them)
    assert len(set(map(fingerprint, all_of_them))) == len(all_of_them)
