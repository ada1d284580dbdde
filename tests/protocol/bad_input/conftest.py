"""Bad input: each case gets its exact error, changes nothing, and leaves the session working."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest

from tests.protocol.talk import Talk, ok

JSON = {"content-type": "application/json"}


@contextmanager
def unharmed(talk: Talk) -> Iterator[None]:
    """Bad input is sent in the block; afterwards all is as it was before, and the session works."""
    before = _how_much_is_stored(talk)
    yield
    assert _how_much_is_stored(talk) == before
    talk.round_trip()


def _how_much_is_stored(talk: Talk) -> list[object]:
    session = talk.http.get(f"/sessions/{talk.session_id}")
    if session.status_code == 404:
        return ["no such session", ok(talk.http.get("/sessions", params={"limit": 1}))["total"]]
    return [ok(session)["messages"], ok(session)["pending"]]


class Form:
    """A body that one of the two POSTs accepts, for tests to spoil."""

    def __init__(self, http: httpx.Client, path: str, text_field: str, **fields: Any) -> None:
        self.path = path
        self.text_field = text_field
        self.fields = fields
        self._http = http

    def body(self, **spelled: str | bytes) -> bytes:
        """The good body, with the JSON of some fields spelled by the test."""
        spelling = {name: json.dumps(value).encode() for name, value in self.fields.items()}
        spelling |= {name: s.encode() if isinstance(s, str) else s for name, s in spelled.items()}
        return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in spelling.items())

    def without(self, field: str) -> bytes:
        """The good body, but for one field."""
        return json.dumps({name: value for name, value in self.fields.items() if name != field}).encode()

    def post(self, body: bytes | Iterator[bytes], headers: dict[str, str] = JSON) -> httpx.Response:
        """Send it; an iterator is sent in chunks."""
        return self._http.post(self.path, content=body, headers=headers)


def prompt_form(talk: Talk) -> Form:
    """A prompt for a session that does not exist yet."""
    return Form(talk.http, "/prompt", "prompt", session_id=talk.session_id, prompt="Hello")


def response_form(talk: Talk) -> Form:
    """An answer to the only prompt of a session."""
    asked = talk.prompt()
    return Form(talk.http, "/response", "text", session_id=talk.session_id, client_msg_id=asked, text="Hi there!")


@pytest.fixture(params=[prompt_form, response_form], ids=["prompt", "response"])
def form(request: pytest.FixtureRequest, talk: Talk) -> Form:
    """Both POSTs in turn."""
    form: Form = request.param(talk)
    return form
