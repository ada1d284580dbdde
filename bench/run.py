"""The benchmark: `make bench`, or a part of it with `make bench ARGS="--works ingest --candidates relay,baseline"`.

In each round every server is started anew, and every work is done on one after the other, several times, so that
whatever else the machine does meets all of them alike; the order changes. Then come the works that need a server of
their own.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from bench import growth, idle, works
from bench.candidates import CANDIDATES, Candidate, Store, found
from bench.load import Missing, compile_load, warm
from bench.machine import LOAD_CORE, ROOT, SERVER_CORE, About, about, allow_many_files, as_row
from bench.report import write_report
from bench.server import DidNotStart, Server, running

RESULTS = Path(__file__).parent / "results"
PARTIAL = RESULTS / "partial"
"""Where a run of only some works or candidates goes: git does not keep it."""
WORKS = (*(work.name for work in works.HEADLINE), idle.NAME, *growth.GROWTH)
FILES_NEEDED = 2 * idle.SOCKETS

T = TypeVar("T")


class Recorder:
    """Writes each row down as soon as it is there: a run that is broken off has not been for nothing."""

    def __init__(self, path: Path, machine: About) -> None:
        self._path = path
        self._began = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_row(machine)) + "\n")

    def add(self, candidate: Candidate, work: str, row: dict[str, Any], round_number: int = 0) -> None:
        row = {"candidate": candidate.name, "work": work, "round": round_number, **row}
        with self._path.open("a") as file:
            file.write(json.dumps({key: _tidy(value) for key, value in row.items()}) + "\n")
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        tell(f"{minutes:3}:{seconds:02}  {work:<12} {candidate.name:<14} {_summary(row)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write tables and plots."""
    wanted = _parse(arguments)
    try:
        compile_load()
    except Missing as why:
        tell(str(why))
        return 1
    if (files := allow_many_files()) < FILES_NEEDED:
        tell(
            f"Only {files} open files are allowed here: works with 10,000 sockets fail. Try: ulimit -Hn {FILES_NEEDED}"
        )
    if SERVER_CORE == LOAD_CORE:
        tell("There is only one core: server and load share it, and waiting times mean nothing.")
    machine = about()
    folder = wanted.out or _folder(wanted, machine)
    recorder = Recorder(folder / "results.jsonl", machine)
    candidates = found(wanted.candidates, tell)
    _run_rounds(candidates, wanted, recorder)
    _run_alone(candidates, wanted, recorder)
    write_report(folder)
    tell(f"Written: {folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/README.md")
    return 0


def _run_rounds(candidates: Sequence[Candidate], wanted: argparse.Namespace, recorder: Recorder) -> None:
    todo = [work for work in works.HEADLINE if work.name in wanted.works]
    for number in range(wanted.rounds if todo else 0):
        with ExitStack() as stack:
            servers = list(_started(_rotated(candidates, number), todo, recorder, stack))
            for work in todo:
                for turn in range(work.turns):
                    for server in _rotated(servers, turn):
                        if _takes_part(server.candidate, work.name):
                            row = works.measure(server, work, wanted.seconds, turn)
                            recorder.add(server.candidate, work.name, row, number * works.TURNS + turn)


def _started(
    candidates: Iterable[Candidate], todo: Sequence[works.Work], recorder: Recorder, stack: ExitStack
) -> Iterator[Server]:
    for candidate in candidates:
        if any(_takes_part(candidate, work.name) for work in todo):
            try:
                server = stack.enter_context(running(candidate))
            except DidNotStart as why:
                recorder.add(candidate, "start", {"error": str(why)})
                continue
            warm(server)
            yield server


def _run_alone(candidates: Sequence[Candidate], wanted: argparse.Namespace, recorder: Recorder) -> None:
    """The works that fill a server, or weigh it: each on one that is fresh."""

    def idle_rows(candidate: Candidate, _: float) -> Iterator[growth.Row]:
        # What sockets weigh does not depend on the store, so one store is enough to see what compression adds.
        for deflate in (False, True) if candidate.store is Store.MEMORY else (False,):
            yield {"what": "deflate offered" if deflate else "plain", **idle.measure(candidate, deflate=deflate)}

    alone: dict[str, Callable[[Candidate, float], Iterator[growth.Row]]] = {idle.NAME: idle_rows, **growth.GROWTH}
    todo = [(number, name) for name in alone for number in range(wanted.long_rounds) if name in wanted.works]
    for number, name in todo:
        for candidate in _rotated(candidates, number):
            if not _takes_part(candidate, name):
                continue
            try:
                for row in alone[name](candidate, wanted.seconds):
                    recorder.add(candidate, name, row, number)
            except (DidNotStart, growth.Failed) as why:
                recorder.add(candidate, name, {"error": str(why)}, number)


def _takes_part(candidate: Candidate, work: str) -> bool:
    return candidate.only is None or work in candidate.only


def _rotated(those: Sequence[T], number: int) -> list[T]:
    """Another one first each time: being first, or coming after a slow one, must not always hit the same."""
    start = number % len(those) if those else 0
    return [*those[start:], *those[:start]]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"rounds of the short works, {works.TURNS} turns each (5)"
    )
    parser.add_argument("--long-rounds", type=int, default=1, help="rounds of idle, sessions, history, subscribers (1)")
    parser.add_argument("--seconds", type=float, default=0.4, help="seconds per measurement (0.4)")
    parser.add_argument("--works", type=_names(WORKS), default=list(WORKS), help="of " + ", ".join(WORKS))
    parser.add_argument(
        "--candidates", type=_names(tuple(CANDIDATES)), default=list(CANDIDATES), help="of " + ", ".join(CANDIDATES)
    )
    parser.add_argument("--out", type=Path, help="folder for the results (a new one in bench/results)")
    return parser.parse_args(arguments)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(given: str) -> list[str]:
        names = given.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _folder(wanted: argparse.Namespace, machine: About) -> Path:
    whole = set(wanted.works) == set(WORKS) and set(wanted.candidates) == set(CANDIDATES)
    return (RESULTS if whole else PARTIAL) / f"{machine.date}-{machine.commit}"


def _summary(row: dict[str, Any]) -> str:
    if "error" in row:
        return "FAILED: " + str(row["error"]).replace("\n", " ")[:200]
    parts = [f"{row.get('what', '')} {row.get('size', '')}".strip(), f"{row['cpu_us']:8.1f} µs CPU"]
    parts += [f"p50 {row['p50_us']:,.0f} µs", f"p99 {row['p99_us']:,.0f} µs"]
    if "load_share" in row:
        parts.append(f"load {row['load_share']:.0%}")
    if "socket_kb" in row:
        parts.append(f"{row['socket_kb']:.1f} KB a socket")
    if "each_kb" in row:
        parts.append(f"{row['each_kb']:.2f} KB each")
    return "  ".join(part for part in parts if part)


def _tidy(value: object) -> object:
    if isinstance(value, str):
        return value.replace(str(ROOT), ".")  # results are published; where the checkout lies is nobody's business
    return round(value, 3) if isinstance(value, float) else value


def tell(sentence: str) -> None:
    """Say it while it happens: a run takes a while."""
    print(sentence, flush=True)


if __name__ == "__main__":
    # Told to stop, it stops its servers first: they are in sessions of their own, and would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
