"""Tokens for the tests of who may do what."""

from __future__ import annotations

import base64
import time
from typing import Any

import jwt

CLIENT = "client-token-of-the-tests-1"
AGENT = "agent-token-of-the-tests-1"
ADMIN = "admin-token-of-the-tests-1"
SECRET = "the secret of the tests: 32 bytes or more"
SETTINGS = {"client_token": CLIENT, "agent_token": AGENT, "admin_token": ADMIN, "secret": SECRET}


def session_token(role: str = "client", sid: str = "own", *, lasts: float = 3600, **claims: Any) -> str:
    """A signed token, made by hand: not by the code that is tested."""
    payload = {"role": role, "sid": sid, "exp": time.time() + lasts} | claims
    return jwt.encode(payload, SECRET, algorithm="HS256")


def bearer(token: str | None) -> dict[str, str]:
    """The header with a token; none without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def offer(token: str) -> list[str]:
    """The subprotocols that a browser offers."""
    return ["relay.v1", "relay.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")]
