"""What the relay is to reach, and whether this run shows it: ratios of server CPU per operation within one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.results import Results
from bench.works import HEADLINE

RELAYS = ("relay", "relay-sqlite", "relay-redis", "asgi", "asgi-sqlite", "asgi-redis")
MOST_GROWTH = 1.3
MOST_SOCKET_KB = 10.0
MOST_P50_OF_NCHAN = 1.4
MOST_LATENESS_MS = 50.0

FIGURES = {work.name: work.figure for work in HEADLINE}
LEAST_RATIOS = (
    ("relay", "ingest", "baseline", 14.0),
    ("relay", "ingest", "nchan", 0.55),
    ("relay", "fanout1", "baseline", 3.3),
    ("relay", "fanout1", "nchan", 1.0),
    ("relay", "fanout16", "nchan", 8.0),
    ("relay", "roundtrip64", "baseline", 12.0),
    ("relay", "roundtrip64", "nchan", 0.5),
    *(("relay", work.name, "node", 1.0) for work in HEADLINE),
    ("asgi", "ingest", "baseline", 4.5),
    ("asgi", "fanout1", "baseline", 1.9),
    ("asgi", "roundtrip64", "baseline", 3.0),
    ("relay-sqlite", "ingest", "baseline", 7.0),
    ("relay-redis", "ingest", "baseline", 6.0),
)


@dataclass(frozen=True)
class Verdict:
    """A goal and what was measured; None if this run did not measure it."""

    goal: str
    bound: str
    measured: float | None
    reached: bool


def verdicts(results: Results) -> Iterator[Verdict]:
    """Every goal, in the order of the tables."""
    for candidate, work, against, least in LEAST_RATIOS:
        ratio = results.ratio(work, candidate, against, FIGURES[work])
        yield _at_least(f"{candidate}: {work}, × {against}", ratio.middle if ratio else None, least)
    p50 = results.ratio("roundtrip1", "relay", "nchan", "p50_us")
    yield _at_most("relay: p50 of roundtrip1, × nchan's", 1 / p50.middle if p50 else None, MOST_P50_OF_NCHAN)
    for what in ("plain", "deflate offered"):
        weight = results.figure("idle", "relay", "socket_after_pings_kb", what=what)
        yield _at_most(f"relay: KB per idle socket, {what}", weight, MOST_SOCKET_KB)
    late = results.figure("idle", "relay", "p99_us", what="plain")
    yield _at_most("relay: ms that pings hold others up, p99", late and late / 1000, MOST_LATENESS_MS)
    for candidate in RELAYS:
        yield _grows("sessions", candidate, "prompt", results)
        for what in ("first page", "last page", "post", "post to another session"):
            yield _grows("history", candidate, what, results)


def _grows(work: str, candidate: str, what: str, results: Results) -> Verdict:
    ratio = results.growth(work, candidate, what)
    return _at_most(f"{candidate}: growth with {work}, {what}", ratio.middle if ratio else None, MOST_GROWTH)


def _at_least(goal: str, measured: float | None, bound: float) -> Verdict:
    return Verdict(goal, f"≥ {bound:g}", measured, measured is not None and measured >= bound)


def _at_most(goal: str, measured: float | None, bound: float) -> Verdict:
    return Verdict(goal, f"≤ {bound:g}", measured, measured is not None and measured <= bound)
