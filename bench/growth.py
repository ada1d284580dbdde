"""Whether an operation costs the same when there is much: sessions, history, subscribers.

A server is filled through its API and measured at each size on the way up, turn by turn with a second one that stays
small. Each row has `size`, `what` was done, its cost, and as `small_us` what it cost the other one in the same turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bench import load
from bench.candidates import Candidate
from bench.load import run
from bench.server import Server, running

Row = dict[str, Any]

SESSIONS = (1, 100, 10_000, 100_000)
MESSAGES = (100, 1_000, 10_000, 100_000)
SUBSCRIBERS = (1, 100, 1_000, 10_000)
TURNS = 7
POSTS = 2_000
"""Answers per measured post in a history: enough to be exact, too few to change its size much."""
SETTLE = 40_000
"""After so many messages of one session a server is as it will be from then on: SQLite moves its journal as fast as
messages come, and what came before them is in its tables. Only a server that is a second old, or a message that is,
costs less."""
ROUND = 32_768
"""It does so in rounds of up to so many. A random part of one comes on top, so that each measurement meets another
point of it."""
OTHER = "other"
"""A session that others are beside."""
NO_PING_SECONDS = 3_600
"""10,000 sockets take longer to open than pings are apart: a ping to all of them would be counted as deliveries."""


class Failed(Exception):
    """A size could not be reached, so nothing can be said about it."""


def sessions(candidate: Candidate, seconds: float) -> Iterator[Row]:
    """A prompt to any of so many sessions, in an order that no cache foresees; what a session weighs."""
    with _two(candidate) as (small, large):
        there = 0
        for size in SESSIONS:
            before = large.memory_kb()
            _seed(large, "seed", size - there, first=there, prefix="grow")
            weight = (large.memory_kb() - before) / (size - there)
            there = size
            # Only the last step is large enough to weigh one of them.
            about = {"size": size, "what": "prompt", **({"each_kb": weight} if size == SESSIONS[-1] else {})}
            yield from _turns(about, partial(_prompt, small, 1, seconds), partial(_prompt, large, size, seconds))


def history(candidate: Candidate, seconds: float) -> Iterator[Row]:
    """Pages and posts in a session that holds so many messages, and a post beside it; what a message weighs.

    The last page is of messages that have just come, the first of messages that are at rest.
    """
    least = MESSAGES[0]
    with _two(candidate) as (small, large):

        def fresh() -> str:
            return _write(small, f"fresh{random.random()}", least)

        rest = fresh()
        _settle(small)
        for size in MESSAGES:
            before = large.memory_kb()
            its = _write(large, f"history{size}", size)
            weight = {"each_kb": (large.memory_kb() - before) / size} if size == MESSAGES[-1] else {}
            yield from _turns(
                {"size": size, "what": "last page"},
                lambda: _page(small, fresh(), 0, seconds),
                partial(_page, large, its, size - load.PAGE, seconds),
            )
            _settle(large)
            yield from _turns(
                {"size": size, "what": "first page"},
                partial(_page, small, rest, 0, seconds),
                partial(_page, large, its, 0, seconds),
            )
            yield from _turns(
                {"size": size, "what": "post", **weight},
                lambda: _post(small, fresh()),
                partial(_post, large, its),
            )
            yield from _turns(
                {"size": size, "what": "post to another session"},
                partial(_post, small, OTHER),
                partial(_post, large, OTHER),
            )


def subscribers(candidate: Candidate, seconds: float) -> Iterator[Row]:
    """An answer to so many sockets of one session; per delivery. With one socket that is the whole post."""
    with running(candidate, ping_seconds=NO_PING_SECONDS) as server:
        load.warm(server)
        for size in SUBSCRIBERS:
            row = run(server, "fanout", sockets=size, seconds=seconds, prefix=f"subscribers{size}")
            yield {"size": size, "what": "delivery", **row}


GROWTH: Mapping[str, Callable[[Candidate, float], Iterator[Row]]] = {
    "sessions": sessions,
    "history": history,
    "subscribers": subscribers,
}


@contextmanager
def _two(candidate: Candidate) -> Iterator[tuple[Server, Server]]:
    """One that will stay small and one that will grow, neither of them in its first second."""
    with ExitStack() as stack:
        both = stack.enter_context(running(candidate)), stack.enter_context(running(candidate))
        for server in both:
            load.warm(server)
            _settle(server)
        yield both


def _turns(about: Row, on_small: Callable[[], Row], on_large: Callable[[], Row]) -> Iterator[Row]:
    """The same on both, again and again: the machine is not as fast in one second as in the next."""
    for turn in range(TURNS):
        if turn % 2:
            small, large = on_small(), on_large()
        else:
            large, small = on_large(), on_small()
        failed = {"error": small["error"]} if "error" in small else {}
        yield {**about, **large, "small_us": small.get("cpu_us"), **failed}


def _prompt(server: Server, count: int, seconds: float) -> Row:
    first = random.randrange(count)
    return run(server, "requests", kind="prompt", seconds=seconds, sessions=count, first=first, prefix="grow")


def _page(server: Server, name: str, offset: int, seconds: float) -> Row:
    return run(server, "requests", kind="page", connections=8, seconds=seconds / 2, offset=offset, prefix=name)


def _post(server: Server, name: str) -> Row:
    return run(server, "requests", kind="answer", seconds=0, count=POSTS, prefix=name, sessions=1)


def _write(server: Server, name: str, messages: int) -> str:
    """A session with so many messages."""
    _seed(server, "seed", 1, prefix=name, sessions=1)
    _seed(server, "answer", messages - 1, prefix=name, sessions=1)
    return name


def _settle(server: Server) -> None:
    _write(server, OTHER, SETTLE + random.randrange(ROUND))


def _seed(server: Server, kind: str, count: int, **options: object) -> None:
    row = run(server, "requests", kind=kind, seconds=0, count=count, **options)
    if "error" in row:
        raise Failed(str(row["error"]))
