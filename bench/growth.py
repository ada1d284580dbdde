"""Whether an operation costs the same when there is much: sessions, history, subscribers.

A server is filled through its API and measured at each size on the way up. Each row has `size`, `what` was done, and
its cost; the smallest size of the same run is what the others are compared with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench import load
from bench.candidates import Candidate
from bench.load import run
from bench.server import Server, running

Row = dict[str, Any]

SESSIONS = (1, 100, 10_000, 100_000)
MESSAGES = (100, 1_000, 10_000, 100_000)
SUBSCRIBERS = (1, 100, 1_000, 10_000)
POSTS = 5_000
"""Answers per measured post in a history: enough to be exact, too few to change its size much."""
SETTLE = 40_000
"""After so many messages a server is as it will be from then on: SQLite moves its journal with every group, and what
came before them is in its tables. Only a server that is a second old, or a message that is, costs less."""
ROUND = 16_384
"""It does so in rounds of about so many, with a pause between two. A random part of one comes on top, so that each
measurement meets another point of it."""
OTHER = {"prefix": "other", "sessions": 1}
NO_PING_SECONDS = 3_600
"""10,000 sockets take longer to open than pings are apart: a ping to all of them would be counted as deliveries."""


class Failed(Exception):
    """A size could not be reached, so nothing can be said about it."""


def sessions(candidate: Candidate, seconds: float) -> Iterator[Row]:
    """A prompt to any of so many sessions, in an order that no cache foresees; what a session weighs."""
    with running(candidate) as server:
        load.warm(server)
        _settle(server)
        there = 0
        for size in SESSIONS:
            before = server.memory_kb()
            _seed(run(server, "requests", kind="seed", seconds=0, first=there, count=size - there, prefix="grow"))
            weight = (server.memory_kb() - before) / (size - there)
            there = size
            row = run(server, "requests", kind="prompt", seconds=seconds, sessions=size, prefix="grow")
            # Only the last step is large enough to weigh one of them.
            yield {"size": size, "what": "prompt", **row, **({"each_kb": weight} if size == SESSIONS[-1] else {})}


def history(candidate: Candidate, seconds: float) -> Iterator[Row]:
    """Pages and posts in a session that holds so many messages, and a post beside it; what a message weighs.

    The last page is of messages that have just come, the first of messages that are at rest.
    """
    with running(candidate) as server:
        load.warm(server)
        _settle(server)
        for size in MESSAGES:
            its = {"prefix": f"history{size}", "sessions": 1}
            _seed(run(server, "requests", kind="seed", seconds=0, count=1, **its))
            before = server.memory_kb()
            _seed(run(server, "requests", kind="answer", seconds=0, count=size - 1, **its))
            weight = {"each_kb": (server.memory_kb() - before) / size} if size == MESSAGES[-1] else {}
            page = {"kind": "page", "connections": 8, "seconds": seconds, **its}
            yield {"size": size, "what": "last page", **run(server, "requests", **page, offset=size - load.PAGE)}
            _settle(server)
            yield {"size": size, "what": "first page", **run(server, "requests", **page, offset=0)}
            post = {"kind": "answer", "seconds": 0, "count": POSTS}
            yield {"size": size, "what": "post", **run(server, "requests", **post, **its), **weight}
            beside = run(server, "requests", **post, **OTHER)
            yield {"size": size, "what": "post to another session", **beside}


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


def _settle(server: Server) -> None:
    _seed(run(server, "requests", kind="seed", seconds=0, count=1, **OTHER))
    count = SETTLE + random.randrange(ROUND)
    _seed(run(server, "requests", kind="answer", seconds=0, count=count, **OTHER))


def _seed(row: Row) -> None:
    if "error" in row:
        raise Failed(str(row["error"]))
