"""The relay is killed under load, again and again, and its file has everything that it acknowledged."""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import subprocess
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.faults.load import ROOM, Ledger, acknowledged, writing
from tests.protocol.talk import Talk, assert_error, ok, wait_until
from tests.serving import DOORS, ROOT, environment, running

ROUNDS = int(os.environ.get("RELAY_SOAK_ROUNDS", "10"))


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_kill_9_under_eight_writers_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    ledgers = [Ledger(f"s{n}") for n in range(8)]
    moments = random.Random(1)
    for _ in range(ROUNDS):
        with running("serve", store_url=f"sqlite:///{path}", **ROOM) as server:
            with httpx.Client(base_url=server.url, timeout=20) as http:
                for ledger in ledgers:
                    ledger.check(http)
                    ledger.settle(http)
                    ledger.check(http)
            goal = acknowledged(ledgers) + 50
            with writing([server.url], ledgers):
                wait_until(lambda goal=goal: acknowledged(ledgers) > goal)  # type: ignore[misc]
                time.sleep(moments.uniform(0, 0.3))
                server.process.kill()
                server.process.wait()
        [[verdict]] = sqlite3.connect(path).execute("PRAGMA integrity_check")
        assert verdict == "ok"
    assert acknowledged(ledgers) > ROUNDS * 50


def test_it_starts_quickly_after_a_crash_with_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    with running("serve", store_url=f"sqlite:///{path}", max_pending_per_session=100_000) as server:
        with httpx.Client(base_url=server.url, timeout=20) as http:
            for session in range(30):
                for n in range(20):
                    body = {"session_id": f"s{session}", "client_msg_id": f"p{n}", "prompt": "x" * 130_000}
                    http.post("/prompt", json=body).raise_for_status()
        server.process.kill()
        server.process.wait()
    assert path.stat().st_size + Path(f"{path}-wal").stat().st_size > 70_000_000
    began = time.monotonic()
    with running("serve", store_url=f"sqlite:///{path}") as server:
        took = time.monotonic() - began
        with httpx.Client(base_url=server.url) as http:
            assert len(Talk(http, "s29").pending()) == 20
    assert took < 5, "python's own start included"


def test_a_second_process_on_the_same_file_is_refused(tmp_path: Path) -> None:
    with running("serve", store_url=str(tmp_path / "relay.db")) as server:
        for door in DOORS:
            second = subprocess.run(
                DOORS[door],
                cwd=ROOT,
                env=environment(store_url=tmp_path / "relay.db"),
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert second.returncode == 3
            sentence = f"relay: Another relay uses {tmp_path}/relay.db. One process owns a SQLite file"
            assert sentence in second.stderr
            assert "Traceback" not in second.stderr
        with httpx.Client(base_url=server.url) as http:
            Talk(http, "s1").round_trip()


def test_a_full_disk_is_a_503_and_passes_when_there_is_room_again(tmp_path: Path) -> None:
    with running("serve", store_url=f"sqlite:///{tmp_path}/relay.db") as server:
        with httpx.Client(base_url=server.url, timeout=20) as http:
            talk = Talk(http, "s1")
            talk.prompt(client_msg_id="p1")
            # The kernel lets no file of this process grow beyond what is there now: as good as a full disk.
            everything = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            size = max(file.stat().st_size for file in tmp_path.iterdir())
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 300_000, everything[1]))
            kept = 1
            while (answer := talk.post_prompt("x" * 50_000)).status_code == 200:
                kept += 1
                assert kept < 1000
            assert_error(answer, 503, "store_unavailable", "Service temporarily unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert http.get("/healthz").status_code == 503
            assert len(talk.pending()) == kept
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, everything)
            ok(http.get("/healthz"))
            talk.respond("p1")
            talk.round_trip()
            assert len(talk.pending()) == kept - 1
        assert not [line for line in server.lines if "Traceback" in line]
