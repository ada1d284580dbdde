"""Who is calling: role tokens, signed session tokens, and what each role may do.

A token is an opaque string. Role tokens come from the settings and are good for every session; session tokens are JWTs
signed with RELAY_SECRET (HS256 and nothing else), good for the sessions they name until they expire.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import jwt
import msgspec

from relay.config import Settings, listed
from relay.errors import Forbidden, InvalidToken

ALGORITHM = "HS256"
MAX_TOKEN_CHARS = 4096
REMEMBERED_TOKENS = 1_000
"""So many checked session tokens are remembered: checking a signature costs more than all else in a request."""


class Role(str, Enum):
    """What a token is for."""

    CLIENT = "client"
    AGENT = "agent"
    ADMIN = "admin"


class Access(msgspec.Struct, frozen=True):
    """Who may use an endpoint. `everywhere`: it shows more than one session, so the token must be good for all."""

    roles: frozenset[Role] = frozenset()
    everywhere: bool = False
    free: bool = False
    """Also for callers without a token."""


FREE = Access(free=True)
ANY_ROLE = Access(frozenset(Role))
CLIENTS = Access(frozenset({Role.CLIENT, Role.ADMIN}))
AGENTS = Access(frozenset({Role.AGENT, Role.ADMIN}))
ADMINS = Access(frozenset({Role.ADMIN}))
ADMINS_EVERYWHERE = Access(frozenset({Role.ADMIN}), everywhere=True)


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Somebody whose token was accepted."""

    role: Role
    sessions: str
    """The session that the token is good for; with * at the end, all that begin so."""
    expires: float | None
    """Unix time in seconds; None: never."""
    key: str
    """A name for the token that does not give it away."""

    def may_use(self, session_id: str) -> bool:
        """Whether the token is good for this session."""
        if self.sessions == "*":
            return True
        if self.sessions.endswith("*"):
            return session_id.startswith(self.sessions[:-1])
        return session_id == self.sessions

    def require_session(self, session_id: str) -> None:
        """Raises Forbidden if the token is for other sessions."""
        if self.sessions != "*" and not self.may_use(session_id):
            raise Forbidden("the token is for other sessions")

    def require(self, access: Access) -> None:
        """Raises Forbidden if the role does not do this."""
        if self.role not in access.roles:
            raise Forbidden(f"this is not for the role {self.role.value}")
        if access.everywhere and self.sessions != "*":
            raise Forbidden("this needs a token for all sessions")


ANYONE = Caller(Role.ADMIN, "*", None, "")
"""The caller where no tokens are asked for."""


class Tokens:
    """Knows every token that is accepted."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._secrets = listed(settings.secret)
        self._known = [
            (_digest(token.encode()), Role(role))
            for role, tokens in settings.role_tokens.items()
            for token in listed(tokens)
        ]
        self._checked: dict[bytes, Caller] = {}

    def identify(self, token: bytes) -> Caller:
        """Whose token it is. Raises InvalidToken, which does not say how close it was."""
        digest = _digest(token)
        role = None
        for known, its_role in self._known:  # all of them, always: time must not tell which one is nearly right
            if hmac.compare_digest(known, digest):
                role = its_role
        if role is not None:
            return Caller(role, "*", None, _key(digest))
        if not self._secrets:
            raise InvalidToken
        caller = self._checked.get(digest)
        if caller is None:
            # By the part that is signed: the signature itself can be written in more than one way.
            signed = token.rpartition(b".")[0]
            caller = self._remember(digest, self._read(token, _key(_digest(signed))))
        self.refuse_expired(caller)
        return caller

    def refuse_expired(self, caller: Caller) -> None:
        """Raises InvalidToken if the caller's token is no longer good."""
        if caller.expires is not None and caller.expires <= self._now():
            raise InvalidToken("the token has expired")

    def _read(self, token: bytes, key: str) -> Caller:
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidToken
        claims = read_token(token, self._secrets)
        return Caller(Role(claims["role"]), claims["sid"], claims["exp"], key)

    def _remember(self, digest: bytes, caller: Caller) -> Caller:
        if len(self._checked) >= REMEMBERED_TOKENS:
            del self._checked[next(iter(self._checked))]
        self._checked[digest] = caller
        return caller


def make_token(secret: str, role: Role, sid: str, expires: int) -> str:
    """A signed session token, good until the Unix time `expires`."""
    return jwt.encode({"role": role.value, "sid": sid, "exp": expires}, secret, algorithm=ALGORITHM)


def read_token(token: bytes | str, secrets: Iterable[str]) -> dict[str, Any]:
    """The claims of a session token that one of the secrets has signed. Raises InvalidToken."""
    refusal = InvalidToken()
    for secret in secrets:
        claims = _claims(token, secret)
        if isinstance(claims, dict):
            return claims
        refusal = claims or refusal
    raise refusal


def _claims(token: bytes | str, secret: str) -> dict[str, Any] | InvalidToken | None:
    """What the token says, why it is refused, or None if there is nothing to say about it."""
    options: Any = {"require": ["role", "sid", "exp"], "verify_aud": False}
    try:
        claims = jwt.decode(token, secret, algorithms=[ALGORITHM], options=options)
    except jwt.ExpiredSignatureError:
        return InvalidToken("the token has expired")
    except jwt.ImmatureSignatureError:
        return InvalidToken("the token is not valid yet")
    except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError):
        return None  # malformed, or signed by somebody else
    return claims if _well_formed(claims) else None


def _well_formed(claims: dict[str, Any]) -> bool:
    roles = {role.value for role in Role}
    exp = claims["exp"]
    return (
        isinstance(claims["role"], str)
        and claims["role"] in roles
        and isinstance(claims["sid"], str)
        and bool(claims["sid"])
        and isinstance(exp, int | float)
        and not isinstance(exp, bool)
        and 0 < exp < 2**53
    )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _key(digest: bytes) -> str:
    return "token:" + digest[:16].hex()
