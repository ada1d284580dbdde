"""Every target: its share of the runs, the words that its language is made of, and the inputs worth keeping."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzz import decode_frame, decode_request, read_query, speak_http, speak_websocket
from relay.server.ws_protocol import WebSocketProtocol

CORPUS = Path(__file__).parent / "corpus"

JSON_WORDS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"null", b"true", b"false", b"NaN", b"Infinity", b"-"),
    *(
        b"0",
        b"-0",
        b"01",
        b"1.5",
        b"1e5",
        b"1e400",
        b"-1E-400",
        b"8.64e15",
        b"8640000000000001",
        b"18446744073709551616",
    ),
    *(b"\\u0000", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u00e9", b"\\n", b"\\/", b"\\x"),
    *(b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xff", b"\xc0\x80", b"\xef\xbb\xbf", b"\x00", b"\x7f"),
)
FIELDS = (b"session_id", b"client_msg_id", b"assistant_msg_id", b"prompt", b"text", b"metadata", b"ts")
MEMBERS = tuple(b'"%b":' % field for field in FIELDS)

FRAMES = (
    *(b"\x81\x80\0\0\0\0", b"\x01\x81\0\0\0\0", b"\x80\x80\0\0\0\0", b"\x89\x80\0\0\0\0", b"\xc1", b"\xff"),
    *(b"\x88\x82\0\0\0\0\x03\xe8", b"\x82\xfe\0\x80\0\0\0\0", b"\x81\xff\0\0\0\0\0\1\0\1", b'{"type":"ping"}'),
)
HTTP_WORDS = (
    *(speak_http.post(4), speak_http.POLL, speak_http.SEPARATOR, b"\r\n", b"\r\n\r\n", b"\n", b"HTTP/1.1", b"HTTP/1.0"),
    *(b"Content-Length: ", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Connection: close", b"Upgrade: x"),
    *(
        b"GET ",
        b"POST ",
        b"/prompt",
        b"/prompts/s1",
        b"/ws/s1",
        b"Host: x",
        b"0\r\n\r\n",
        b"54",
        b"\t",
        b"Origin: http://x",
    ),
)
QUERY_WORDS = (
    *(b"&", b"=", b"%", b"+", b";", b"%26", b"1e", b"1_0", b"nan", b"inf", b"true", b"FALSE", b"%E2%81%B0", b"9" * 16),
    *(b"wait=", b"timeout=", b"limit=", b"offset=", b"since=", b"300", b"1000", b"1001", b"9007199254740991"),
)
TYPE_WORDS = (
    *(b"application/json", b"Application/JSON", b"; charset=utf-8", b';charset="UTF-8"', b"charset=", b"latin-1"),
    *(b"text/plain", b"multipart/form-data", b",", b";", b" ", b"\t", b'"', b"=", b"\\", b"\xff"),
)


@dataclass(frozen=True)
class Target:
    """Something to fuzz."""

    open: Callable[[], AbstractContextManager[Callable[[bytes], None]]]
    percent: int
    words: tuple[bytes, ...]
    max_bytes: int = 400


TARGETS = {
    "prompt": Target(lambda: nullcontext(decode_request.prompt), 30, (*JSON_WORDS, *MEMBERS)),
    "response": Target(lambda: nullcontext(decode_request.response), 25, (*JSON_WORDS, *MEMBERS)),
    "client_message": Target(
        lambda: nullcontext(decode_frame.client_message), 20, (*JSON_WORDS, b'"type":', b'"ping"', b'"pong"')
    ),
    "websocket": Target(partial(speak_websocket.opened, WebSocketProtocol), 5, FRAMES),
    "fast_socket": Target(speak_websocket.opened, 5, FRAMES),
    "http": Target(speak_http.opened, 5, HTTP_WORDS),
    "query": Target(lambda: nullcontext(read_query.query), 5, QUERY_WORDS, 100),
    "content_type": Target(lambda: nullcontext(read_query.content_type), 5, TYPE_WORDS, 80),
}


def kept(name: str) -> list[bytes]:
    """The inputs that earlier runs found worth keeping: each takes a way that no shorter one takes."""
    return [ast.literal_eval(line) for line in (CORPUS / f"{name}.txt").read_text().splitlines()]


def keep(name: str, inputs: list[bytes]) -> None:
    """Write them for the next runs, and for the tests."""
    lines = sorted(set(inputs), key=lambda data: (len(data), data))
    (CORPUS / f"{name}.txt").write_text("".join(f"{data!r}\n" for data in lines))
