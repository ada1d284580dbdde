"""server/auth.py from inside: what a token is good for, to the second, and how many are remembered."""

from __future__ import annotations

import time

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from relay.errors import Forbidden, InvalidToken
from relay.server import auth
from relay.server.auth import ADMINS_EVERYWHERE, AGENTS, CLIENTS, Caller, Role, Tokens, make_token, read_token
from tests.clock import Clock
from tests.factories import some_settings
from tests.server.tokens import AGENT, CLIENT, SECRET, session_token


def tokens(now: Clock | None = None, **changed: str) -> Tokens:
    settings = {"client_token": CLIENT, "agent_token": AGENT, "secret": SECRET} | changed
    return Tokens(
        some_settings(**{name: SecretStr(value) for name, value in settings.items()}), now or Clock(time.time())
    )


def a_caller(role: Role = Role.CLIENT, sessions: str = "*") -> Caller:
    return Caller(role, sessions, None, "k")


def test_a_role_token_is_good_for_every_session_and_for_ever() -> None:
    caller = tokens().identify(CLIENT.encode())
    assert (caller.role, caller.sessions, caller.expires) == (Role.CLIENT, "*", None)


def test_the_name_of_a_caller_does_not_give_its_token_away() -> None:
    for token in (CLIENT, session_token()):
        key = tokens().identify(token.encode()).key
        assert key == tokens().identify(token.encode()).key
        assert not any(token[n : n + 6] in key for n in range(len(token) - 6))
    assert tokens().identify(CLIENT.encode()).key != tokens().identify(AGENT.encode()).key


def test_a_token_in_another_spelling_is_the_same_caller() -> None:
    """Else each spelling would have a rate of its own."""
    token = session_token().encode()
    assert tokens().identify(token + b"=").key == tokens().identify(token).key


def test_a_remembered_token_expires_all_the_same() -> None:
    clock = Clock(time.time())
    known = tokens(clock)
    token = make_token(SECRET, Role.AGENT, "s1", int(clock.now) + 60).encode()
    assert known.identify(token).expires == int(clock.now) + 60
    clock.now = int(clock.now) + 59.9
    assert known.identify(token).role is Role.AGENT
    clock.now += 0.1
    with pytest.raises(InvalidToken, match="the token has expired"):
        known.identify(token)


def test_no_more_tokens_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_TOKENS", 10)
    known = tokens()
    for n in range(100):
        assert known.identify(session_token(sid=f"s{n}").encode()).sessions == f"s{n}"
        assert len(known._checked) <= 10
    assert known.identify(session_token(sid="s0").encode()).sessions == "s0"


def test_tokens_that_are_refused_are_not_remembered() -> None:
    known = tokens()
    for n in range(100):
        with pytest.raises(InvalidToken):
            known.identify(jwt.encode({"role": "client", "sid": f"s{n}", "exp": 2**40}, "x" * 32).encode())
    assert known._checked == {}


KNOWN, BEGINNING = tokens(), session_token()[:20]


@given(st.binary(max_size=200) | st.text().map(lambda text: f"{BEGINNING}{text}".encode()))
def test_nothing_that_is_not_a_token_passes_for_one(token: bytes) -> None:
    with pytest.raises(InvalidToken):
        KNOWN.identify(token)


@given(st.sampled_from(Role), st.text(min_size=1), st.integers(60, 10**9))
def test_what_was_made_is_read(role: Role, sid: str, seconds: int) -> None:
    expires = int(time.time()) + seconds
    claims = read_token(make_token(SECRET, role, sid, expires), ["y" * 32, SECRET])
    assert claims == {"role": role.value, "sid": sid, "exp": expires}


def test_without_a_secret_no_session_token_is_good() -> None:
    with pytest.raises(InvalidToken):
        tokens(secret="").identify(session_token().encode())


def test_every_secret_of_the_list_is_accepted() -> None:
    rotated = tokens(secret=f"{'n' * 32}, {SECRET}")
    assert rotated.identify(session_token().encode()).sessions == "own"
    assert rotated.identify(make_token("n" * 32, Role.CLIENT, "new", 2**40).encode()).sessions == "new"


@given(st.text(max_size=5), st.text(max_size=8))
def test_a_prefix_is_good_for_what_begins_so_and_nothing_else(prefix: str, session_id: str) -> None:
    assert a_caller(sessions=prefix + "*").may_use(session_id) == session_id.startswith(prefix)


@given(st.text(min_size=1, max_size=5).filter(lambda sid: not sid.endswith("*")), st.text(max_size=5))
def test_one_session_is_one_session(sid: str, other: str) -> None:
    assert a_caller(sessions=sid).may_use(other) == (sid == other)


def test_roles_and_scopes_are_both_required() -> None:
    a_caller(Role.CLIENT).require(CLIENTS)
    a_caller(Role.ADMIN, "*").require(ADMINS_EVERYWHERE)
    with pytest.raises(Forbidden, match="not for the role client"):
        a_caller(Role.CLIENT).require(AGENTS)
    with pytest.raises(Forbidden, match="a token for all sessions"):
        a_caller(Role.ADMIN, "team-*").require(ADMINS_EVERYWHERE)
