"""What is measured: each work's name, what one operation of it is, and how the load generator is told to do it.

The short works here run against servers that are all up at once. Those that need a server of their own, because they
fill it or weigh it, are in `idle.py` and `growth.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import load
from bench.server import Server

TURNS = 3
"""So often in each round a work is done on all servers, one after the other. The machine is slow in one second and fast
in the next: several short measurements, each beside the others', tell more than a long one."""


@dataclass(frozen=True)
class Work:
    """A work that the load generator does in one go."""

    name: str
    title: str
    operation: str
    """What the microseconds are per."""
    load: str
    options: Mapping[str, object] = field(default_factory=dict)
    figure: str = "cpu_us"
    """What is compared: the server's CPU, or how long it takes."""
    seconds: float = 1.0
    """How long, as a multiple of what the command line asks for."""
    turns: int = TURNS
    """Fewer where each takes long."""


# Ingest comes last: it leaves tens of thousands of messages behind in each server.
HEADLINE: Sequence[Work] = (
    Work("roundtrip1", "Round trip, 1 session", "trip", "roundtrip", {"sessions": 1}),
    Work("roundtrip64", "Round trip, 64 sessions at once", "trip", "roundtrip", {"sessions": 64}),
    Work("fanout1", "Fan-out to 1,000 sockets, 1 poster", "delivery", "fanout", {"posters": 1, "window": 4}),
    Work("fanout16", "Fan-out to 1,000 sockets, 16 posters", "delivery", "fanout", {"posters": 16, "window": 16}),
    Work(
        "latency",
        "Latency from post to socket, 5 posts a second to 1,000 sockets",
        "delivery",
        "fanout",
        {"posters": 1, "rate": 5},
        figure="p50_us",
        seconds=5.0,
        turns=1,
    ),
    Work(
        "herd",
        "1,000 polls wait on one session, one prompt wakes all",
        "poll",
        "herd",
        {"polls": 1000},
        seconds=2.0,
        turns=1,
    ),
    Work("ingest", "Ingest of prompts, 64 connections", "prompt", "requests", {"kind": "prompt", "connections": 64}),
)


def measure(server: Server, work: Work, seconds: float, turn: int = 0) -> dict[str, Any]:
    """One row: what the work cost this server. Each turn has sessions of its own: the last may have left prompts."""
    prefix = f"{work.name}turn{turn}"  # letters and digits: nchan takes nothing else
    return load.run(server, work.load, prefix=prefix, seconds=seconds * work.seconds, **work.options)
