"""What every request must pass before an endpoint sees it, whatever the door: origin, token, role, session, rate.

Nothing of the body has been read by then, and whether a session exists has not been asked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec

from relay.config import Settings
from relay.errors import InvalidToken, OriginNotAllowed, RelayError, TokenRequired, Unauthorized
from relay.server.auth import ANYONE, CLIENTS, Access, Caller, Tokens
from relay.server.http import Headers
from relay.server.origin import FORWARDING_HEADERS, Origins, Proxies, is_local_name, is_local_peer
from relay.server.rate import Buckets, FailedLogins, RateLimiter
from relay.store.base import Store

SUBPROTOCOL = "relay.v1"
BEARER_SUBPROTOCOL = "relay.bearer."
"""A browser cannot set a header on a WebSocket, but it can offer subprotocols: relay.v1, relay.bearer.<base64url>."""

TICKET_SECONDS = 30
TICKET_PARAMETER = "ticket"

_CHANGING = frozenset({"POST", "DELETE", "PUT", "PATCH"})
_SET_TOKENS = (
    "set RELAY_CLIENT_TOKEN, RELAY_AGENT_TOKEN and RELAY_ADMIN_TOKEN (relay serve --generate-token makes them), "
    "or RELAY_INSECURE=true to serve everyone"
)
_caller_decoder = msgspec.json.Decoder(Caller)


class Head(Protocol):
    """The head of a request, as far as it is looked at here."""

    method: str
    headers: dict[bytes, bytes]
    """By lower-case name; what was given twice is joined with a comma, and then no longer passes for one value."""
    peer: str | None
    """The address at the other end of the connection; None if it has none."""
    session_id: str
    """The session in the path; empty if there is none."""


class Guard:
    """Lets requests in, or raises the error with which they are refused."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._token_mode = settings.token_mode
        self._insecure = settings.insecure
        self._tokens = Tokens(settings)
        self._origins = Origins(settings)
        self._proxies = Proxies(settings)
        self._store = store
        buckets = Buckets(store)
        self._rate = RateLimiter(buckets, settings.rate_limit if settings.token_mode else 0)
        self.spend = self._rate.spend
        """Whether one more request under a caller's key passes without asking the store; if not, `check` decides."""
        self._failed_logins = FailedLogins(buckets, settings.failed_logins_per_minute)

    async def check(self, head: Head, access: Access) -> Caller:
        """Let a request in. Raises Unauthorized, Forbidden, RateLimited."""
        try:
            caller = self._identify(head, access)
        except (Unauthorized, OriginNotAllowed) as error:
            await self._refused(head, error)
            raise
        await self._pay(head, caller)
        _require(caller, head, access)  # paid for already: refusals cost us as much as answers
        return caller

    def admit(self, head: Head, access: Access) -> Caller:
        """The same, but for how often: `spend` tells whether that may be left out."""
        caller = self._identify(head, access)
        _require(caller, head, access)
        return caller

    async def count(self, head: Head) -> None:
        """Note a request that is answered whoever sends it. Raises RateLimited."""
        await self._pay(head, ANYONE)

    async def check_socket(self, head: Head, query: bytes) -> Caller:
        """Let a WebSocket in, whose token may come in three ways: header, subprotocol or ticket."""
        try:
            self._check_origin(head, always=True)
            caller = await self._identify_socket(head, query)
        except (Unauthorized, OriginNotAllowed) as error:
            await self._refused(head, error)
            raise
        await self._pay(head, caller)
        _require(caller, head, CLIENTS)
        return caller

    async def make_ticket(self, caller: Caller, session_id: str | None) -> str:
        """A word that lets one WebSocket in, for whoever can set neither headers nor subprotocols."""
        if session_id is not None:
            caller.require_session(session_id)
            caller = msgspec.structs.replace(caller, sessions=session_id)
        ticket = secrets.token_urlsafe(24)
        await self._store.keep_ticket(_ticket_name(ticket), msgspec.json.encode(caller), TICKET_SECONDS)
        return ticket

    def cors(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What the browser of a page that may use the relay is told; nothing for any other."""
        origin = headers.get(b"origin")
        if origin is None or not self._origins.allowed(origin, headers.get(b"host")):
            return ()
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"retry-after"),
            (b"vary", b"origin"),
        )

    def _check_origin(self, head: Head, *, always: bool) -> None:
        origin = head.headers.get(b"origin")
        if origin is None or not (always or head.method in _CHANGING):
            return
        if not self._origins.allowed(origin, head.headers.get(b"host")):
            raise OriginNotAllowed("add the page's origin to RELAY_ALLOWED_ORIGINS if it may use this relay")

    def _check_open(self, head: Head) -> None:
        """Without tokens only this machine itself is served."""
        if self._insecure:
            return
        if not is_local_peer(head.peer):
            raise TokenRequired(f"from another machine this relay needs a token: {_SET_TOKENS}")
        if not FORWARDING_HEADERS.isdisjoint(head.headers):
            raise TokenRequired(f"through a proxy this relay needs a token: {_SET_TOKENS}")
        if not is_local_name(head.headers.get(b"host")):
            raise TokenRequired(f"under this name (Host) this relay needs a token: {_SET_TOKENS}")

    def _identify(self, head: Head, access: Access) -> Caller:
        self._check_origin(head, always=False)
        if access.free:
            return ANYONE
        if not self._token_mode:
            self._check_open(head)
            return ANYONE
        return self._tokens.identify(_bearer(head.headers))

    async def _identify_socket(self, head: Head, query: bytes) -> Caller:
        if not self._token_mode:
            self._check_open(head)
            return ANYONE
        if b"authorization" in head.headers:
            return self._tokens.identify(_bearer(head.headers))
        if (token := _offered_token(head.headers)) is not None:
            return self._tokens.identify(token)
        for name, value in parse_qsl(query.decode("latin-1")):
            if name == TICKET_PARAMETER:
                holder = await self._store.take_ticket(_ticket_name(value))
                if holder is None:
                    raise InvalidToken("the ticket is unknown, used or older than 30 seconds")
                caller = _caller_decoder.decode(holder)
                self._tokens.refuse_expired(caller)
                return caller
        raise TokenRequired("send Authorization: Bearer <token>, offer relay.bearer.<base64url>, or use a ticket")

    async def _refused(self, head: Head, error: RelayError) -> None:
        """Count it: a wrong token more strictly than a missing one."""
        if not self._token_mode:
            return
        address = self._proxies.address(head.peer, head.headers)
        if isinstance(error, InvalidToken):
            await self._failed_logins.count(address)
        await self._rate.pay(address)

    async def _pay(self, head: Head, caller: Caller) -> None:
        if self._token_mode:
            await self._rate.pay(caller.key or self._proxies.address(head.peer, head.headers))


def _require(caller: Caller, head: Head, access: Access) -> None:
    if not access.free:
        caller.require(access)
    if head.session_id:
        caller.require_session(head.session_id)


def _ticket_name(ticket: str) -> str:
    """What the store knows a ticket by: whoever watches the store cannot use it."""
    return hashlib.sha256(ticket.encode()).hexdigest()


def subprotocol(headers: Mapping[bytes, bytes]) -> str | None:
    """The subprotocol to agree to: ours if it is offered, never the one with the token."""
    return SUBPROTOCOL if SUBPROTOCOL in _offered(headers) else None


def _bearer(headers: Mapping[bytes, bytes]) -> bytes:
    value = headers.get(b"authorization")
    if value is None:
        raise TokenRequired("send the header Authorization: Bearer <token>")
    scheme, _, token = value.partition(b" ")
    if scheme.lower() != b"bearer" or not token:
        raise InvalidToken("send the header Authorization: Bearer <token>")
    return token


def _offered(headers: Mapping[bytes, bytes]) -> list[str]:
    offered = headers.get(b"sec-websocket-protocol", b"").decode("latin-1")
    return [name.strip() for name in offered.split(",")]


def _offered_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    for name in _offered(headers):
        if name.startswith(BEARER_SUBPROTOCOL):
            encoded = name.removeprefix(BEARER_SUBPROTOCOL)
            try:
                return base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                raise InvalidToken("relay.bearer.… must hold the token as base64url") from None
    return None
