"""The benchmark: its arithmetic, and that a server which answers wrongly never looks fast."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from bench import layers, load, run
from bench.candidates import CANDIDATES, Candidate, baseline
from bench.goals import LEAST_RATIOS, RELAYS, verdicts
from bench.report import write_report
from bench.results import Results, Row
from bench.server import Server
from relay.config import LogLevel

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="the load generator is compiled")


def a_row(candidate: str, cpu_us: float, round_number: int = 0, work: str = "ingest", **more: object) -> Row:
    return {"candidate": candidate, "work": work, "round": round_number, "cpu_us": cpu_us, "p50_us": 1, **more}


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine is ten times as slow in the second round; that is nobody's merit.
    rounds = [(100.0, 10.0), (1000.0, 50.0), (100.0, 5.0)]
    rows = [
        a_row(name, cost, number)
        for number, costs in enumerate(rounds)
        for name, cost in zip(("baseline", "relay"), costs, strict=True)
    ]
    ratio = Results(rows).ratio("ingest", "relay", "baseline")
    assert ratio is not None
    assert (ratio.middle, ratio.least, ratio.most) == (20.0, 10.0, 20.0)


def test_a_round_that_only_one_of_both_was_in_does_not_count() -> None:
    rows = [a_row("baseline", 100), a_row("relay", 10), a_row("relay", 1, 1)]
    ratio = Results(rows).ratio("ingest", "relay", "baseline")
    assert ratio is not None
    assert ratio.middle == 10.0


def test_what_failed_does_not_count_and_is_told(tmp_path: Path) -> None:
    rows = [a_row("relay", 10), a_row("relay", 0.1, 1, error="7 wrong answers: no")]
    results = Results(rows)
    assert results.figure("ingest", "relay") == 10
    about = {"about": dict.fromkeys(("date", "commit", "cpu", "cores", "memory_gb", "system", "python"), "?")}
    (tmp_path / "results.jsonl").write_text("\n".join(json.dumps(row) for row in [about, *rows]))
    write_report(tmp_path)
    assert "ingest relay, round 2: 7 wrong answers" in (tmp_path / "README.md").read_text()


def test_growth_compares_the_largest_size_with_the_smallest() -> None:
    rows = [
        a_row("relay", cost, work="sessions", what="prompt", size=size)
        for size, cost in ((100, 30.0), (1, 20.0), (10_000, 25.0))
    ]
    growth = Results(rows).growth("sessions", "relay", "prompt")
    assert growth is not None
    assert growth.middle == 1.25


def test_growth_is_taken_within_each_turn_where_a_small_server_was_measured_beside_the_large_one() -> None:
    # The machine is ten times as slow in the second turn.
    turns = [(100, 20.0, 20.0), (10_000, 22.0, 20.0), (10_000, 300.0, 200.0), (10_000, 26.0, 20.0)]
    rows = [
        a_row("relay", cost, work="sessions", what="prompt", size=size, small_us=small) for size, cost, small in turns
    ]
    growth = Results(rows).growth("sessions", "relay", "prompt")
    assert growth is not None
    assert (growth.middle, growth.least, growth.most) == (1.3, 1.1, 1.5)


def test_a_goal_is_reached_or_missed_or_not_measured() -> None:
    rows = [a_row("relay", 10), a_row("baseline", 150), a_row("asgi", 50), a_row("nchan", 5)]
    by_goal = {verdict.goal: verdict for verdict in verdicts(Results(rows))}
    assert by_goal["relay: ingest, × baseline"].reached
    assert not by_goal["asgi: ingest, × baseline"].reached
    assert by_goal["relay: fanout1, × nchan"].measured is None


def test_goals_speak_of_candidates_and_works_that_exist() -> None:
    for candidate, work, against, _ in LEAST_RATIOS:
        assert {candidate, against} <= set(CANDIDATES)
        assert work in run.WORKS
    assert set(RELAYS) <= set(CANDIDATES)


class _Wrong(BaseHTTPRequestHandler):
    """Answers everything at once with 200 and nonsense."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class _Running:
    """As much of a bench.server.Server as the load generator is told about."""

    port: int
    candidate: Candidate

    def pids(self) -> list[int]:
        return []

    store_pids = pids


@pytest.fixture
def wrong_server() -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Wrong) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield cast(Server, _Running(server.server_port, baseline()))
        server.shutdown()
        thread.join()


@needs_compiler
def test_a_server_that_answers_wrongly_never_looks_fast(wrong_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "pin", lambda _: None)
    load.compile_load()
    row = load.run(wrong_server, "requests", kind="prompt", connections=2, seconds=0, count=10)
    assert row["wrong"] == 10
    assert "a post was not taken, status 200" in row["error"]


@needs_compiler
def test_a_small_run_measures_real_servers(tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--seconds", "0.2", "--works", "ingest,roundtrip1", "--candidates", "relay,baseline"]
    assert run.main([*arguments, "--out", str(tmp_path)]) == 0
    results = Results.read(tmp_path / "results.jsonl")
    assert results.failed == []
    for work in ("ingest", "roundtrip1"):
        assert results.ratio(work, "relay", "baseline") is not None
    assert "| relay |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "headline.svg").read_text().startswith("<svg")


async def test_the_layers_of_a_prompt_make_up_all_of_it() -> None:
    taken = await layers.measure(50, 1, log_level=LogLevel.WARNING)
    whole = taken.pop("all")
    assert list(taken) == ["find the head", "decode and check", "encode", "keep", "log and count", "answer", "the rest"]
    assert whole > 0
    assert sum(taken.values()) == pytest.approx(whole)
