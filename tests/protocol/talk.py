"""The calls of the specification in one line each, so that a test says only what it is about."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect


class Address:
    """Where a relay is, and the token that it wants, if any."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def header_lines(self) -> bytes:
        """The token for a request that is written by hand."""
        return b"".join(f"{name}: {value}\r\n".encode() for name, value in self.headers.items())

    def client(self, timeout: float = 30, **more: Any) -> httpx.Client:
        """An HTTP client with the token; no TLS, and so no time spent on its certificates."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=timeout, verify=False, **more)

    def connect(self, path: str, **more: Any) -> ClientConnection:
        """A WebSocket client with the token."""
        client: ClientConnection = connect(
            self.url.replace("http", "ws", 1) + path, additional_headers=self.headers, **more
        )
        return client


class Talk:
    """What clients and agents do in one session."""

    def __init__(self, http: httpx.Client, session_id: str) -> None:
        self.http = http
        self.session_id = session_id

    def post_prompt(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        """POST /prompt."""
        return self.http.post("/prompt", json={"session_id": self.session_id, "prompt": prompt, **fields})

    def prompt(self, prompt: str = "Hello", **fields: Any) -> str:
        """POST /prompt, which succeeds; returns the client_msg_id."""
        return str(ok(self.post_prompt(prompt, **fields))["client_msg_id"])

    def post_response(self, client_msg_id: Any, text: Any = "Hi there!", **fields: Any) -> httpx.Response:
        """POST /response."""
        body = {"session_id": self.session_id, "client_msg_id": client_msg_id, "text": text, **fields}
        return self.http.post("/response", json=body)

    def respond(self, client_msg_id: str, text: str = "Hi there!", **fields: Any) -> str:
        """POST /response, which succeeds; returns the assistant_msg_id."""
        return str(ok(self.post_response(client_msg_id, text, **fields))["assistant_msg_id"])

    def pending(self, **query: Any) -> list[dict[str, Any]]:
        """GET /prompts, at once unless the query says otherwise."""
        answer = self.http.get(f"/prompts/{self.session_id}", params={"wait": "false"} | query)
        assert answer.status_code == 200, answer.text
        return list(answer.json())

    def pending_ids(self) -> list[str]:
        """The client_msg_ids of the pending prompts."""
        return [prompt["client_msg_id"] for prompt in self.pending()]

    def messages(self, **query: Any) -> dict[str, Any]:
        """GET /messages."""
        return ok(self.http.get(f"/messages/{self.session_id}", params=query))

    def session(self) -> dict[str, Any]:
        """GET /sessions/{session_id}."""
        return ok(self.http.get(f"/sessions/{self.session_id}"))

    def round_trip(self, listener: ClientConnection | None = None) -> None:
        """A prompt is asked, fetched and answered: proof that the session still works."""
        client_msg_id = self.prompt("Still there?")
        assert client_msg_id in self.pending_ids()
        assistant_msg_id = self.respond(client_msg_id, "Yes.")
        assert client_msg_id not in self.pending_ids()
        if listener is not None:
            assert next_message(listener)["assistant_msg_id"] == assistant_msg_id


def ok(answer: httpx.Response) -> dict[str, Any]:
    """The body of an answer that must be 200."""
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def assert_error(answer: httpx.Response, status: int, code: str, error: str, details: str | None = None) -> None:
    """The answer is exactly this error; `details` too, if given."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) <= {"error", "details", "code"}
    assert (body["error"], body["code"]) == (error, code)
    if details is not None:
        assert body["details"] == details


def next_frame(listener: ClientConnection, seconds: float = 10, *, pings: bool = False) -> dict[str, Any]:
    """The next frame that a listener gets. A ping may come at any time, and is passed over unless it is wanted."""
    while (frame := dict(json.loads(listener.recv(timeout=seconds))))["type"] == "ping" and not pings:
        pass
    return frame


def next_message(listener: ClientConnection, seconds: float = 10) -> dict[str, Any]:
    """The next answer that a listener gets."""
    frame = next_frame(listener, seconds)
    assert frame["type"] == "message", frame
    return dict(frame["data"])


def closed(listener: ClientConnection) -> tuple[int, str]:
    """The code and reason with which the server closes; nothing else may come before, but pings."""
    with pytest.raises(ConnectionClosed) as end:
        next_frame(listener)
    assert end.value.rcvd is not None, "the connection broke without a close frame"
    return end.value.rcvd.code, end.value.rcvd.reason


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Ask again and again until it is so; for states that a server reaches soon and does not announce."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)
