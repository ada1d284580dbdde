"""server/guard.py from inside: what depends on the moment."""

from __future__ import annotations

import time

import pytest
from pydantic import SecretStr

from relay.errors import InvalidToken
from relay.server.asgirequest import head_of
from relay.server.auth import Role, Tokens, make_token
from relay.server.guard import Guard
from relay.store.memory import MemoryStore
from tests.clock import Clock
from tests.factories import GENEROUS, some_settings
from tests.server.tokens import SECRET


async def test_a_ticket_does_not_outlive_the_token_it_was_given_for() -> None:
    clock = Clock(int(time.time()))
    settings = some_settings(secret=SecretStr(SECRET))
    guard = Guard(settings, MemoryStore(GENEROUS))
    guard._tokens = tokens = Tokens(settings, clock)
    caller = tokens.identify(make_token(SECRET, Role.CLIENT, "s1", int(clock.now) + 10).encode())
    head = head_of({"headers": [], "query_string": b"", "client": ("127.0.0.1", 1)}, "s1")
    first, second = [f"ticket={await guard.make_ticket(caller, None)}".encode() for _ in range(2)]
    clock.now += 9
    assert await guard.check_socket(head, first) == caller
    clock.now += 1
    with pytest.raises(InvalidToken, match="the token has expired"):
        await guard.check_socket(head, second)
