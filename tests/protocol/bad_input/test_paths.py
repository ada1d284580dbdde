"""Paths that lead nowhere, methods that a path does not have, ids that no session can have."""

from __future__ import annotations

import pytest

from tests.protocol.bad_input.conftest import unharmed
from tests.protocol.talk import Talk, assert_error

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
ALLOWED = {
    "/prompt": {"POST"},
    "/response": {"POST"},
    "/prompts/{session_id}": {"GET"},
    "/messages/{session_id}": {"GET"},
    "/ws/{session_id}": {"GET"},
    "/sessions": {"GET"},
    "/sessions/{session_id}": {"GET", "DELETE"},
    "/healthz": {"GET"},
}


@pytest.mark.parametrize(("path", "allowed"), ALLOWED.items(), ids=ALLOWED)
def test_a_wrong_method(talk: Talk, path: str, allowed: set[str]) -> None:
    talk.prompt()
    with unharmed(talk):
        for method in METHODS - allowed:
            answer = talk.http.request(method, path.format(session_id=talk.session_id))
            details = "see /docs for the methods of each path"
            assert_error(answer, 405, "method_not_allowed", "Method not allowed", details)
            assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nope",
        "/PROMPT",
        "/prompts",
        "/messages",
        "/prompts/{session_id}/more",
        "/prompts/a%2F{session_id}",
        "/session/{session_id}",
        "/prompt;x",
        "/prompt%20",
        "/%00",
    ],
)
def test_an_unknown_route(talk: Talk, path: str) -> None:
    talk.prompt()
    with unharmed(talk):
        for method in ("GET", "POST"):
            answer = talk.http.request(method, path.format(session_id=talk.session_id))
            assert_error(answer, 404, "not_found", "Not found", "see /docs for the paths that there are")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/prompt/"),
        ("POST", "/response/"),
        ("GET", "/prompts/{session_id}/"),
        ("GET", "/messages/{session_id}/"),
        ("GET", "/sessions/"),
        ("DELETE", "/sessions/{session_id}/"),
        ("GET", "/ws/{session_id}/"),
        ("GET", "/prompts/"),
        ("GET", "/messages/"),
        ("GET", "/healthz/"),
    ],
)
def test_a_trailing_slash_is_another_path_and_no_redirect(talk: Talk, method: str, path: str) -> None:
    talk.prompt()
    with unharmed(talk):
        answer = talk.http.request(
            method,
            path.format(session_id=talk.session_id),
            json={"session_id": talk.session_id, "prompt": "x"} if method == "POST" else None,
            follow_redirects=False,
        )
        assert_error(answer, 404, "not_found", "Not found", "see /docs for the paths that there are")
        assert "location" not in answer.headers


@pytest.mark.parametrize("path", ["/ws", "/ws/", "/ws/{session_id}"])
def test_a_websocket_path_without_an_upgrade(talk: Talk, path: str) -> None:
    with unharmed(talk):
        answer = talk.http.get(path.format(session_id=talk.session_id))
        details = "connect with a WebSocket client to /ws/{session_id}"
        assert_error(answer, 400, "upgrade_required", "This path is a WebSocket", details)


ODD_IDS = {
    "257 characters": "x" * 257,
    "dot": "%2E",
    "two dots": "%2E%2E",
    "NUL": "%00",
    "control character": "%01",
    "DEL": "%7F",
    "C1 control character": "%C2%85",
    "not UTF-8": "%FF",
    "surrogate in UTF-8": "%ED%A0%80",
    "not an escape": "%zz",
}


@pytest.mark.parametrize("odd_id", ODD_IDS.values(), ids=ODD_IDS)
def test_an_odd_id(talk: Talk, odd_id: str) -> None:
    with unharmed(talk):
        for method, path in (("GET", "prompts"), ("GET", "messages"), ("GET", "sessions"), ("DELETE", "sessions")):
            answer = talk.http.request(method, f"/{path}/{odd_id}")
            assert_error(answer, 404, "session_not_found", "Session does not exist")
            assert "details" not in answer.json()
