"""Tables and plots of a run, from its JSON lines.

For a run of the past once more: `.venv/bin/python -m bench.report bench/results/<run>`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import idle, plot
from bench.candidates import CANDIDATES
from bench.goals import verdicts
from bench.results import Ratio, Results
from bench.works import HEADLINE, Work

PLOTTED = [name for name in CANDIDATES if name != "relay-redis-2"]  # it has another core for itself
BESIDE = ("baseline", "nchan", "node")
NONE = "–"


def write_report(folder: Path) -> None:
    """README.md and plots, beside the results.jsonl that is there."""
    results = Results.read(folder / "results.jsonl")
    for name, draw in PLOTS.items():
        if svg := draw(results):
            (folder / f"{name}.svg").write_text(svg)
        else:
            (folder / f"{name}.svg").unlink(missing_ok=True)
    (folder / "README.md").write_text("\n".join(_page(results, folder)) + "\n")


def _page(results: Results, folder: Path) -> Iterator[str]:
    about = results.about
    yield f"# Benchmark of {about['date']}, commit {about['commit']}"
    yield ""
    yield (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, "
        f"Python {about['python']}. How to read this: [bench/README.md](../../README.md)."
    )
    yield from _goals(results)
    for work in HEADLINE:
        yield from _headline(results, work)
    yield from _plot(folder, "headline", "µs of server CPU per operation")
    yield from _idle(results)
    yield from _plot(folder, "idle", "Memory per idle socket")
    yield from _growth(results)
    yield from _plot(folder, "growth", "Cost of an operation as things grow")
    yield from _failures(results)


def _goals(results: Results) -> Iterator[str]:
    known = [verdict for verdict in verdicts(results) if verdict.measured is not None]
    if not known:
        return
    reached = sum(verdict.reached for verdict in known)
    yield from ["", f"## Goals: {reached} of {len(known)} reached", ""]
    yield from _table(
        ("goal", "bound", "measured", ""),
        ((v.goal, v.bound, f"{v.measured:.2f}", "reached" if v.reached else "**missed**") for v in known),
    )


def _headline(results: Results, work: Work) -> Iterator[str]:
    there = [name for name in CANDIDATES if results.rows(work.name, name)]
    if not there:
        return
    yield from ["", f"## {work.title}", ""]
    head = ["candidate", "rounds", f"µs CPU per {work.operation}", *(f"× {name}" for name in BESIDE)]
    yield from _table(
        [*head, "p50 µs", "p99 µs", "server's CPU", "load's CPU", "Valkey's µs"],
        (
            [
                name,
                str(results.rounds(work.name, name)),
                _number(results.figure(work.name, name), 1),
                *(_ratio(results.ratio(work.name, name, other, work.figure)) for other in BESIDE),
                _number(results.figure(work.name, name, "p50_us")),
                _number(results.figure(work.name, name, "p99_us")),
                _percent(results.figure(work.name, name, "server_share")),
                _percent(results.figure(work.name, name, "load_share")),
                _number(results.figure(work.name, name, "store_cpu_us") or None, 1),
            ]
            for name in there
        ),
    )


def _idle(results: Results) -> Iterator[str]:
    there = [
        (name, what)
        for name in CANDIDATES
        for what in ("plain", "deflate offered")
        if results.rows(idle.NAME, name, what=what)
    ]
    if not there:
        return
    yield from ["", f"## {idle.SOCKETS:,} idle sockets", ""]

    def cell(key: str, digits: int) -> Callable[[str, str], str]:
        return lambda name, what: _number(results.figure(idle.NAME, name, key, what=what), digits)

    columns = {
        "KB per socket": cell("socket_kb", 1),
        "after pings": cell("socket_after_pings_kb", 1),
        "µs CPU per ping": cell("cpu_us", 1),
        "µs CPU per connect": cell("connect_cpu_us", 0),
        "empty server, MB": cell("base_mb", 0),
        "another request meanwhile: p50 µs": cell("p50_us", 0),
        "p99 µs": cell("p99_us", 0),
        "longest µs": cell("max_us", 0),
    }
    yield from _table(
        ("candidate", "clients", *columns),
        ((name, what, *(make(name, what) for make in columns.values())) for name, what in there),
    )


def _growth(results: Results) -> Iterator[str]:
    for work, title, what_of in (
        ("sessions", "µs CPU per prompt, in so many sessions", ("prompt",)),
        (
            "history",
            "µs CPU per request, in a session with so many messages",
            ("first page", "last page", "post", "post to another session"),
        ),
        ("subscribers", "µs CPU per delivery, with so many sockets on one session", ("delivery",)),
    ):
        lines = [(name, what) for what in what_of for name in CANDIDATES if results.rows(work, name, what=what)]
        if not lines:
            continue
        sizes = sorted({size for name, what in lines for size, _ in results.by_size(work, name, what)})
        weighs = [] if work == "subscribers" else ["KB each"]
        # One delivery per post is the cost of the post; only from many on is it that of a delivery.
        least = 100 if work == "subscribers" else sizes[0]
        yield from ["", f"## {title}", ""]
        head = ["candidate", "what", *(f"{size:,}" for size in sizes), f"{sizes[-1]:,} ÷ {least:,}", *weighs]
        yield from _table(
            head,
            (
                [
                    name,
                    what,
                    *(_number(dict(results.by_size(work, name, what)).get(size), 1) for size in sizes),
                    _ratio(results.growth(work, name, what, least)),
                    *(_number(results.figure(work, name, "each_kb", what=what), 2) for _ in weighs),
                ]
                for name, what in lines
            ),
        )


def _failures(results: Results) -> Iterator[str]:
    if not results.failed:
        return
    yield from ["", "## Failed, and left out above", ""]
    for row in results.failed:
        where = " ".join(str(row[key]) for key in ("work", "candidate", "what", "size") if key in row)
        yield f"- {where}, round {row['round'] + 1}: {' '.join(str(row['error']).split())[:200]}"


def _plot(folder: Path, name: str, title: str) -> Iterator[str]:
    if (folder / f"{name}.svg").exists():
        yield from ["", f"![{title}]({name}.svg)"]


def _draw_headline(results: Results) -> str | None:
    panels = [
        plot.Bars(
            work.title,
            f"µs CPU per {work.operation}" if work.figure == "cpu_us" else "µs, p50",
            [(name, cost) for name in PLOTTED if (cost := results.figure(work.name, name, work.figure)) is not None],
        )
        for work in HEADLINE
    ]
    return plot.bars([panel for panel in panels if panel.values])


def _draw_idle(results: Results) -> str | None:
    panels = [
        plot.Bars(
            f"Memory per idle socket, {what}",
            "KB",
            [(name, kb) for name in PLOTTED if (kb := results.figure(idle.NAME, name, "socket_kb", what=what))],
        )
        for what in ("plain", "deflate offered")
    ]
    return plot.bars([panel for panel in panels if panel.values])


def _draw_growth(results: Results) -> str | None:
    panels = []
    for work, what, title in (
        ("sessions", "prompt", "A prompt, in so many sessions"),
        ("history", "first page", "The first page of so many messages"),
        ("history", "last page", "The last page of so many messages"),
        ("history", "post", "A post after so many messages"),
        ("subscribers", "delivery", "A delivery, to so many sockets"),
    ):
        lines = {name: points for name in PLOTTED if (points := list(results.by_size(work, name, what)))}
        if lines:
            panels.append(plot.Lines(title, "µs CPU", lines))
    return plot.lines(panels)


PLOTS: dict[str, Callable[[Results], str | None]] = {
    "headline": _draw_headline,
    "idle": _draw_idle,
    "growth": _draw_growth,
}


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _number(value: float | None, digits: int = 0) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return NONE
    spread = "" if ratio.least == ratio.most else f" ({ratio.least:.2f}–{ratio.most:.2f})"
    return f"{ratio.middle:.2f}{spread}"


if __name__ == "__main__":
    write_report(Path(sys.argv[1]))
