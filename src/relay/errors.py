"""Every way a request can fail, as one tree; each class knows its HTTP status and its stable code.

    RelayError
    ├── BadRequest              400  the caller can mend the request
    │   ├── InvalidJson
    │   ├── MissingField
    │   ├── InvalidField
    │   ├── InvalidQuery
    │   ├── UnsupportedContentType
    │   ├── UpgradeRequired
    │   └── MessageTooLarge
    │       └── BodyTooLarge
    ├── Unauthorized            401  say who you are
    │   ├── TokenRequired
    │   └── InvalidToken
    ├── Forbidden               403  known, but not allowed this
    │   └── OriginNotAllowed
    ├── NotFound                404  nothing there
    │   ├── SessionNotFound
    │   └── PromptNotFound
    ├── MethodNotAllowed        405
    ├── RequestTimeout          408  the request did not arrive in time
    ├── ResponseConflict        409  the id is taken by something else
    ├── TooMany                 429  slow down and try again
    │   ├── TooManyPending
    │   ├── TooManyPolls
    │   ├── RateLimited
    │   └── TooManyFailedLogins
    ├── HeadersTooLarge         431
    ├── Unavailable             503  not the caller's fault; try again
    │   ├── StoreUnavailable
    │   ├── StoreFull
    │   ├── TooManySessions
    │   ├── TooManySubscribers
    │   ├── TooManyConnections
    │   └── Draining
    └── InternalError           500  a bug of ours; tells nothing of the inside

    StartupError                     the server cannot start; the sentence says what to do

Codes are a promise to programs and never change; sentences are for people and may improve.
`details` names the field or the bound and never repeats the caller's text.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import ClassVar


class ErrorCode(str, Enum):
    """The stable, machine-readable name of each error."""

    BAD_REQUEST = "bad_request"
    INVALID_JSON = "invalid_json"
    MISSING_FIELD = "missing_field"
    INVALID_FIELD = "invalid_field"
    INVALID_QUERY = "invalid_query"
    UNSUPPORTED_CONTENT_TYPE = "unsupported_content_type"
    UPGRADE_REQUIRED = "upgrade_required"
    MESSAGE_TOO_LARGE = "message_too_large"
    TOKEN_REQUIRED = "token_required"  # noqa: S105
    INVALID_TOKEN = "invalid_token"  # noqa: S105
    FORBIDDEN = "forbidden"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    NOT_FOUND = "not_found"
    SESSION_NOT_FOUND = "session_not_found"
    PROMPT_NOT_FOUND = "prompt_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    RESPONSE_CONFLICT = "response_conflict"
    TOO_MANY_PENDING = "too_many_pending"
    TOO_MANY_POLLS = "too_many_polls"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_FAILED_LOGINS = "too_many_failed_logins"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL = "internal"
    STORE_UNAVAILABLE = "store_unavailable"
    STORE_FULL = "store_full"
    TOO_MANY_SESSIONS = "too_many_sessions"
    TOO_MANY_SUBSCRIBERS = "too_many_subscribers"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    DRAINING = "draining"


class RelayError(Exception):
    """A refusal with everything its answer needs."""

    status: ClassVar[int] = 500
    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    error: str = "Internal server error"
    retry_after_seconds: int | None = None

    def __init__(self, details: str | None = None) -> None:
        super().__init__(details or self.error)
        self.details = details

    def as_dict(self) -> dict[str, str]:
        """The body of the answer: error, details if there are any, code."""
        body = {"error": self.error}
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code.value
        return body


class BadRequest(RelayError):
    """The request itself is wrong."""

    status = 400
    code = ErrorCode.BAD_REQUEST
    error = "Bad request"


class InvalidJson(BadRequest):
    """The body is not JSON in UTF-8, or holds what JSON cannot carry back."""

    code = ErrorCode.INVALID_JSON
    error = "Invalid JSON"


class MissingField(BadRequest):
    """A required field is absent or null."""

    code = ErrorCode.MISSING_FIELD

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is required")
        self.error = f"Missing required field: {field}"


class InvalidField(BadRequest):
    """A field of the body has the wrong type or breaks a rule."""

    code = ErrorCode.INVALID_FIELD
    error = "Invalid request body"


class InvalidQuery(BadRequest):
    """A query parameter is malformed or out of its bounds."""

    code = ErrorCode.INVALID_QUERY
    error = "Invalid query parameter"


class UnsupportedContentType(BadRequest):
    """The body is not declared as JSON in UTF-8. This also stops cross-site "simple" requests, which cannot do so."""

    code = ErrorCode.UNSUPPORTED_CONTENT_TYPE
    error = "Content-Type must be application/json"


class UpgradeRequired(BadRequest):
    """A WebSocket path was asked for without a session, or without an upgrade."""

    code = ErrorCode.UPGRADE_REQUIRED
    error = "This path is a WebSocket"


class MessageTooLarge(BadRequest):
    """A prompt, a text, metadata or a whole body is over its bound."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    error = "Message exceeds size limit"


class BodyTooLarge(MessageTooLarge):
    """Refused before the whole body was read, so the connection cannot be used again."""


class Unauthorized(RelayError):
    """Nobody knows who is asking."""

    status = 401


class TokenRequired(Unauthorized):
    """This address is served only to callers with a token."""

    code = ErrorCode.TOKEN_REQUIRED
    error = "Authentication required"


class InvalidToken(Unauthorized):
    """The token, or the ticket, is unknown, expired, used up or not yet valid."""

    code = ErrorCode.INVALID_TOKEN
    error = "Invalid token"


class Forbidden(RelayError):
    """The token is good, but its role or its sessions do not allow this."""

    status = 403
    code = ErrorCode.FORBIDDEN
    error = "Not allowed with this token"


class OriginNotAllowed(Forbidden):
    """A web page of another site may not do this."""

    code = ErrorCode.ORIGIN_NOT_ALLOWED
    error = "Origin not allowed"


class NotFound(RelayError):
    """Nothing is served under this path."""

    status = 404
    code = ErrorCode.NOT_FOUND
    error = "Not found"


class SessionNotFound(NotFound):
    """No session has this id: none was created yet, or it is gone."""

    code = ErrorCode.SESSION_NOT_FOUND
    error = "Session does not exist"


class PromptNotFound(NotFound):
    """The session exists, but holds no prompt with this client_msg_id."""

    code = ErrorCode.PROMPT_NOT_FOUND
    error = "No prompt with this client_msg_id in the session"


class MethodNotAllowed(RelayError):
    """The path exists, but not for this method."""

    status = 405
    code = ErrorCode.METHOD_NOT_ALLOWED
    error = "Method not allowed"


class RequestTimeout(RelayError):
    """The request did not arrive in time."""

    status = 408
    code = ErrorCode.REQUEST_TIMEOUT
    error = "Request timeout"


class ResponseConflict(RelayError):
    """This assistant_msg_id was already used for a different response."""

    status = 409
    code = ErrorCode.RESPONSE_CONFLICT
    error = "Another response has this assistant_msg_id"


class TooMany(RelayError):
    """The caller has reached a bound that frees itself."""

    status = 429
    retry_after_seconds = 1


class TooManyPending(TooMany):
    """The agent has to answer some prompts before the session takes more."""

    code = ErrorCode.TOO_MANY_PENDING
    error = "Too many pending prompts"


class TooManyPolls(TooMany):
    """Every place for a waiting poll is taken."""

    code = ErrorCode.TOO_MANY_POLLS
    error = "Too many waiting polls"


class RateLimited(TooMany):
    """More requests per second than one token, or one address, may make."""

    code = ErrorCode.RATE_LIMITED
    error = "Rate limit exceeded"

    def __init__(self, details: str, wait_seconds: float) -> None:
        super().__init__(details)
        self.retry_after_seconds = max(1, math.ceil(wait_seconds))


class TooManyFailedLogins(RateLimited):
    """More refused tokens than one address may try."""

    code = ErrorCode.TOO_MANY_FAILED_LOGINS
    error = "Too many failed logins"


class HeadersTooLarge(RelayError):
    """The head of the request is longer, or has more fields, than anybody needs."""

    status = 431
    code = ErrorCode.HEADERS_TOO_LARGE
    error = "Request header fields too large"


class InternalError(RelayError):
    """Something we did not foresee; the log has the traceback, the caller has nothing to learn from it."""

    status = 500
    code = ErrorCode.INTERNAL
    error = "Internal server error"


class Unavailable(RelayError):
    """The server cannot do its job just now."""

    status = 503
    retry_after_seconds = 1


class StoreUnavailable(Unavailable):
    """The store does not answer; nothing was kept."""

    code = ErrorCode.STORE_UNAVAILABLE
    error = "Service temporarily unavailable"


class StoreFull(Unavailable):
    """The memory given to the store is used up; nothing was kept."""

    code = ErrorCode.STORE_FULL
    error = "The store is full"
    retry_after_seconds = 30


class TooManySessions(Unavailable):
    """No further session can be created until others are deleted or collected."""

    code = ErrorCode.TOO_MANY_SESSIONS
    error = "Too many sessions"
    retry_after_seconds = 30


class TooManySubscribers(Unavailable):
    """Every place for a connected client is taken."""

    code = ErrorCode.TOO_MANY_SUBSCRIBERS
    error = "Too many connected clients"
    retry_after_seconds = 5


class TooManyConnections(Unavailable):
    """The process has as many connections as it may have."""

    code = ErrorCode.TOO_MANY_CONNECTIONS
    error = "Too many connections"


class Draining(Unavailable):
    """The server is stopping; another one, or the same one restarted, will answer."""

    code = ErrorCode.DRAINING
    error = "The server is stopping"


class StartupError(Exception):
    """The server cannot start. Its text is one sentence for the operator, with what to do next."""
