"""server/knownheads.py: a head that is known means what it meant to the parser, and nothing else is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import speak_http
from relay.server.auth import ANYONE, FREE
from relay.server.fastrequest import FastRequest
from relay.server.http import Answer, Request, Route
from relay.server.knownheads import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADS, KnownHeads


async def nothing(request: Request) -> Answer:
    return Answer(200, b"")


def a_request(expires: float | None = None) -> FastRequest:
    request = FastRequest("POST", {}, None, Route("POST", "/prompt", nothing, FREE, 100), "", b"")
    request.caller = type(ANYONE)(ANYONE.role, "*", expires, "")
    return request


def post(body: bytes, length: bytes | None = None, *, name: bytes = b"Content-Length: ", more: bytes = b"") -> bytes:
    length = b"%d" % len(body) if length is None else length
    return b"POST /prompt HTTP/1.1\r\nHost: x\r\n" + name + length + b"\r\nA: b\r\n" + more + b"\r\n" + body


@pytest.mark.parametrize("name", [b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH:\t "])
def test_a_head_is_known_whatever_the_length_of_its_body(name: bytes) -> None:
    known, request = KnownHeads(), a_request()
    known.learn(post(b"{}", name=name), request)
    lengths = [10**digits + more for digits in range(1, 5) for more in (-2, -1, 0, 1)]
    for body in (b"{}", b"", b"x" * MAX_BODY_BYTES, b"a\r\n\r\nb", *(b"x" * length for length in lengths)):
        assert known.find(post(body, name=name)) is request
        assert request.content == body


@pytest.mark.parametrize(
    "other",
    [
        post(b"{}", b"3"),  # the rest is to come
        post(b"{}", b"1"),  # another request follows
        post(b"{}", b"02"),
        post(b"{}", b"+2"),
        post(b"{}", b"2 "),
        post(b"{}", b""),
        post(b"x" * 11, b""),  # so much no number and its body have together
        post(b"x" * 10, b"010"),
        post(b"{}", b"2", more=b"Content-Length: 2\r\n"),
        post(b"{}", b"2\r\nTransfer-Encoding: chunked"),
        post(b"{}", name=b"Content-length: "),
        post(b"x" * (MAX_BODY_BYTES + 1)),
        post(b"{}").replace(b"\r\n", b"\n"),
        post(b"{}")[:-3],
        post(b"{}")[1:],
        b"\r\n" + post(b"{}"),
        post(b"{}") + post(b"{}"),
        b"",
    ],
)
def test_nothing_else_is_known(other: bytes) -> None:
    known = KnownHeads()
    known.learn(post(b"{}"), a_request())
    assert known.find(other) is None


def test_a_head_without_a_body_is_known_as_a_whole() -> None:
    known, request = KnownHeads(), a_request()
    poll = b"GET /prompts/s1 HTTP/1.1\r\nHost: x\r\n\r\n"
    known.learn(poll, request)
    assert known.find(poll) is request
    assert known.find(poll + b"x") is None
    assert known.find(poll + poll) is None
    assert known.find(poll.replace(b"s1", b"s2")) is None


def test_a_token_that_expires_is_looked_at_each_time() -> None:
    known = KnownHeads()
    known.learn(post(b"{}"), a_request(expires=2e9))
    assert known.find(post(b"{}")) is None


def test_only_a_few_are_remembered() -> None:
    known = KnownHeads()
    heads = [b"GET /ab%c HTTP/1.1\r\nHost: x\r\n\r\n" % letter for letter in range(ord("a"), ord("z") + 1)]
    for head in heads:
        known.learn(head, a_request())
    assert sum(known.find(head) is not None for head in heads) <= MAX_HEADS


def test_a_long_head_is_not_remembered() -> None:
    known = KnownHeads()
    long = post(b"{}", more=b"A: " + b"b" * MAX_HEAD_BYTES + b"\r\n")
    known.learn(long, a_request())
    assert known.find(long) is None
    known.learn(post(b"x" * MAX_BODY_BYTES), a_request())
    assert known.find(post(b"{}")) is not None


@pytest.mark.parametrize("more", [b"\r\n", b"\r\n\r\n", b"\r\n\r\n\r\n"])
def test_blank_lines_before_a_request_do_not_hide_its_body(more: bytes) -> None:
    known, request = KnownHeads(), a_request()
    known.learn(more + post(b"{}"), request)
    assert known.find(more + post(b"{}")) is None or request.content == b"{}"


# The door with and without this memory

WHOLE = [
    *(speak_http.post(number) for number in (1, 22, 333)),
    speak_http.HEAD % 2 + b"{}",
    speak_http.HEAD % 0,
    speak_http.POLL,
    b"GET /sessions/none HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
]
PARTS = [
    *(whole[:cut] for whole in WHOLE[:2] for cut in (5, 30, -3)),
    *(whole[cut:] for whole in WHOLE[:2] for cut in (30, -3)),
    *(b"\r\n", b"\r\n\r\n", b"\n", b"0\r\n\r\n"),
    *(speak_http.HEAD % length + speak_http.BODY % 4 for length in (7, 99)),
    speak_http.HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
]
PACKETS = st.lists(
    st.lists(st.sampled_from(WHOLE) | st.sampled_from(WHOLE) | st.sampled_from(PARTS), max_size=3).map(b"".join),
    max_size=12,
)


@pytest.fixture(scope="module")
def target() -> Iterator[Callable[[bytes], None]]:
    with speak_http.opened() as opened:
        yield opened


@settings(max_examples=300, deadline=None)
@given(PACKETS)
def test_the_door_answers_the_same_with_and_without(target: Callable[[bytes], None], packets: list[bytes]) -> None:
    target(speak_http.SEPARATOR.join(packets))
