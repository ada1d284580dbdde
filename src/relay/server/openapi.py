"""What `/openapi.json` and `/docs` say of each endpoint: parameters, bodies, every status, examples that work.

The endpoints themselves know nothing of it; `app.py` joins the two by method and path.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from relay import models
from relay.errors import (
    Draining,
    Forbidden,
    InvalidField,
    InvalidQuery,
    InvalidToken,
    MessageTooLarge,
    MissingField,
    OriginNotAllowed,
    PromptNotFound,
    RateLimited,
    RelayError,
    ResponseConflict,
    SessionNotFound,
    StoreUnavailable,
    TokenRequired,
    TooManyPending,
    TooManyPolls,
)
from relay.models import ErrorResponse
from relay.server.http import Route
from relay.server.query import MAX_INTEGER
from relay.server.rest import DEFAULT_LIMIT, DEFAULT_TIMEOUT_SECONDS, MAX_LIMIT, MAX_TIMEOUT_SECONDS

TITLE = "Relay"
DESCRIPTION = """\
Relay stands between a person's clients and an AI agent behind NAT. Clients post prompts and listen on a WebSocket;
the agent long-polls for prompts and posts answers.

Every error has the same body, `{"error", "details"?, "code"}`. Bad input changes nothing.

### WebSocket `/ws/{session_id}`
Connect to receive `{"type": "message", "data": AssistantMessage}` for each answer and `{"type": "ping", "ts": …}` from
time to time. A client may send `{"type": "pong"}` or `{"type": "ping"}`. See `docs/protocol.md` for close codes.
"""
TAGS = [
    {"name": "client", "description": "What a person's phone or page does."},
    {"name": "agent", "description": "What the agent on the laptop does."},
    {"name": "both", "description": "What either may read."},
    {"name": "operator", "description": "Sessions, health and metrics."},
]

PROMPT_EXAMPLE = {"session_id": "abc", "client_msg_id": "msg-123", "prompt": "Hello"}
RESPONSE_EXAMPLE = {
    "session_id": "abc",
    "client_msg_id": "msg-123",
    "assistant_msg_id": "ans-123",
    "text": "Hi there!",
}
_PROMPT = PROMPT_EXAMPLE | {"ts": 1234567890}
_RESPONSE = RESPONSE_EXAMPLE | {"ts": 1234567891}
_SESSION = {
    "session_id": "abc",
    "created": 1234567890,
    "last_activity": 1234567891,
    "messages": 2,
    "pending": 0,
    "clients": 1,
    "waiting_agents": 1,
}
_HEALTH = {"ok": True, "timestamp": 1234567890}


SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A role token or a session token. Not needed on loopback while no token is configured.",
    }
}


def describe(route: Route, *, token_mode: bool) -> dict[str, Any] | None:
    """Arguments for FastAPI's `add_api_route`; None for a path that is not part of the contract."""
    described = _ROUTES.get((route.method, route.path))
    if described is None or route.access.free:
        return described
    security: list[dict[str, list[str]]] = [{"bearer": []}] if token_mode else [{"bearer": []}, {}]
    refusals = _errors(
        TokenRequired("send the header Authorization: Bearer <token>"),
        InvalidToken("the token has expired"),
        Forbidden("the token is for other sessions"),
        *([OriginNotAllowed()] if route.method != "GET" else []),
        RateLimited("at most 100 requests per second", 1),
    )
    return {
        **described,
        "responses": _merged(refusals, described["responses"]),
        "openapi_extra": {**described.get("openapi_extra", {}), "security": security},
    }


def _merged(refusals: dict[int, dict[str, Any]], responses: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    merged = {**refusals, **responses}
    for status in refusals.keys() & responses.keys():
        examples = {**_examples(refusals[status]), **_examples(responses[status])}
        merged[status] = {
            **responses[status],
            "description": f"{responses[status]['description']}; {refusals[status]['description']}",
            "content": {"application/json": {"examples": examples}},
        }
    return merged


def _examples(response: dict[str, Any]) -> dict[str, Any]:
    examples: dict[str, Any] = response["content"]["application/json"]["examples"]
    return examples


def _answer(model: type[BaseModel], description: str, example: Any, *, array: bool = False) -> dict[str, Any]:
    content = {"application/json": {"example": example}}
    return {"model": list[model] if array else model, "description": description, "content": content}  # type: ignore[valid-type]


def _errors(*errors: RelayError) -> dict[int, dict[str, Any]]:
    """The error responses by status, each with an example per code."""
    responses: dict[int, dict[str, Any]] = {}
    for error in errors:
        response = responses.setdefault(
            error.status,
            {"model": ErrorResponse, "description": "", "content": {"application/json": {"examples": {}}}},
        )
        response["content"]["application/json"]["examples"][error.code.value] = {"value": error.as_dict()}
        response["description"] = "; ".join(filter(None, [response["description"], error.error]))
        if error.retry_after_seconds is not None:
            response["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer"}}
            }
    return responses


def _body(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}


def _query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_SESSION_ID = {
    "name": "session_id",
    "in": "path",
    "required": True,
    "description": "The conversation.",
    "schema": {"type": "string", **models.ID_SCHEMA},
    "example": "abc",
}
_LIMIT = _query(
    "limit",
    "Most items to return.",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
)
_OFFSET = _query(
    "offset",
    "How many to skip.",
    {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER, "default": 0},
)
_TOO_LARGE = MessageTooLarge(f"prompt is over {models.MAX_TEXT_BYTES} bytes of UTF-8")
_BAD_BODY = (MissingField("session_id"), InvalidField("session_id must be a string"), _TOO_LARGE)
_DOWN = StoreUnavailable()

_ROUTES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/prompt"): {
        "summary": "Submit a prompt",
        "description": "Stores the prompt and wakes the agent. Creates the session. The same `client_msg_id` again is "
        "accepted and changes nothing.",
        "tags": ["client"],
        "responses": {
            200: _answer(models.PromptStored, "Stored.", {"stored": True, "client_msg_id": "msg-123"}),
            **_errors(*_BAD_BODY, TooManyPending(), _DOWN),
        },
        "openapi_extra": {"requestBody": _body(models.PromptIn, PROMPT_EXAMPLE)},
    },
    ("GET", "/prompts/{session_id}"): {
        "summary": "Fetch pending prompts",
        "description": "Every prompt without an answer, oldest first. If there is none and `wait` is true, waits for "
        "one; `[]` when the time is up.",
        "tags": ["agent"],
        "responses": {
            200: _answer(models.PromptMessage, "Pending prompts.", [_PROMPT], array=True),
            **_errors(InvalidQuery("timeout must be a finite number from 0 to 300"), SessionNotFound()),
            **_errors(TooManyPolls(), _DOWN),
        },
        "openapi_extra": {
            "parameters": [
                _SESSION_ID,
                _query(
                    "timeout",
                    "Seconds to wait.",
                    {
                        "type": "number",
                        "minimum": 0,
                        "maximum": MAX_TIMEOUT_SECONDS,
                        "default": DEFAULT_TIMEOUT_SECONDS,
                    },
                ),
                _query("wait", "Whether to wait for a prompt.", {"type": "boolean", "default": True}),
            ]
        },
    },
    ("POST", "/response"): {
        "summary": "Answer a prompt",
        "description": "Stores the answer, ends the prompt's wait and hands the answer to every connected client. The "
        "same answer under the same `assistant_msg_id` again is accepted and not sent twice.",
        "tags": ["agent"],
        "responses": {
            200: _answer(
                models.ResponseAccepted,
                "Accepted and delivered.",
                {"ok": True, "assistant_msg_id": "ans-123", "delivered": True, "recipients": 1},
            ),
            **_errors(*_BAD_BODY, SessionNotFound(), PromptNotFound(), ResponseConflict(), _DOWN),
        },
        "openapi_extra": {"requestBody": _body(models.ResponseIn, RESPONSE_EXAMPLE)},
    },
    ("GET", "/messages/{session_id}"): {
        "summary": "Read the history",
        "description": "Prompts and answers of the session, oldest first.",
        "tags": ["both"],
        "responses": {
            200: _answer(
                models.History,
                "A page of messages.",
                {
                    "session_id": "abc",
                    "messages": [{"type": "prompt", "data": _PROMPT}, {"type": "assistant", "data": _RESPONSE}],
                    "total": 2,
                    "limit": 100,
                    "offset": 0,
                },
            ),
            **_errors(InvalidQuery("limit must be an integer from 1 to 1000"), SessionNotFound(), _DOWN),
        },
        "openapi_extra": {
            "parameters": [
                _SESSION_ID,
                _LIMIT,
                _OFFSET,
                _query("since", "Only messages with a later `ts`, in Unix milliseconds.", {"type": "number"}),
            ]
        },
    },
    ("POST", "/ticket"): {
        "summary": "Get a ticket for one WebSocket",
        "description": "For clients that can set neither headers nor subprotocols: connect to "
        "`/ws/{session_id}?ticket=…` within 30 seconds, once. Without `session_id` it is good for each session that "
        "the token is good for.",
        "tags": ["client"],
        "responses": {
            200: _answer(models.Ticket, "A ticket.", {"ticket": "Yw3n…", "expires_in": 30}),
            **_errors(InvalidField("session_id must be a string"), _DOWN),
        },
        "openapi_extra": {"requestBody": {**_body(models.TicketIn, {"session_id": "abc"}), "required": False}},
    },
    ("GET", "/sessions"): {
        "summary": "List sessions",
        "description": "Every session, in the order of creation.",
        "tags": ["operator"],
        "responses": {
            200: _answer(
                models.SessionPage,
                "A page of sessions.",
                {"sessions": [_SESSION], "total": 1, "limit": 100, "offset": 0},
            ),
            **_errors(InvalidQuery("limit must be an integer from 1 to 1000"), _DOWN),
        },
        "openapi_extra": {"parameters": [_LIMIT, _OFFSET]},
    },
    ("GET", "/sessions/{session_id}"): {
        "summary": "Look at a session",
        "description": "When it was created and used, what it holds and who listens.",
        "tags": ["operator"],
        "responses": {
            200: _answer(models.Session, "The session.", _SESSION),
            **_errors(SessionNotFound(), _DOWN),
        },
        "openapi_extra": {"parameters": [_SESSION_ID]},
    },
    ("DELETE", "/sessions/{session_id}"): {
        "summary": "Delete a session",
        "description": "Forgets everything in it. Its sockets close with 4404, its waiting polls get 404.",
        "tags": ["operator"],
        "responses": {
            200: _answer(models.Deleted, "Deleted.", {"deleted": True}),
            **_errors(SessionNotFound(), _DOWN),
        },
        "openapi_extra": {"parameters": [_SESSION_ID]},
    },
    ("GET", "/healthz"): {
        "summary": "Is it healthy?",
        "description": "503 while the server cannot do its job.",
        "tags": ["operator"],
        "responses": {200: _answer(models.Health, "Healthy.", _HEALTH), **_errors(_DOWN)},
    },
    ("GET", "/livez"): {
        "summary": "Does the process live?",
        "description": "Looks at nothing else.",
        "tags": ["operator"],
        "responses": {200: _answer(models.Health, "Alive.", _HEALTH)},
    },
    ("GET", "/readyz"): {
        "summary": "Send traffic here?",
        "description": "Healthy, and not about to stop.",
        "tags": ["operator"],
        "responses": {200: _answer(models.Health, "Ready.", _HEALTH), **_errors(_DOWN, Draining())},
    },
    ("GET", "/metrics"): {
        "summary": "Metrics for Prometheus",
        "description": "See `docs/observability.md`.",
        "tags": ["operator"],
        "responses": {
            200: {
                "description": "Prometheus text format.",
                "content": {"text/plain": {"schema": {"type": "string"}, "example": "relay_prompts_total 1.0\n"}},
            }
        },
    },
}
