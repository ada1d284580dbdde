"""Several workers on one address and one Redis are one relay."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from tests.faults.load import Ledger, acknowledged, writing
from tests.faults.test_redis_crash import Listener
from tests.protocol.talk import wait_until
from tests.serving import DOORS, ROOT, Server, environment
from tests.store.redis_server import RedisServer


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Server]:
    """`relay serve --workers 2`."""
    redis = RedisServer(tmp_path)
    process = subprocess.Popen(
        [*DOORS["serve"], "--workers", "2", "--store", redis.url],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Server(process)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()
        redis.stop()


def test_two_workers_serve_one_relay_and_stop_together(workers: Server) -> None:
    ledgers = [Ledger(f"s{n}") for n in range(8)]
    with httpx.Client(base_url=workers.url, timeout=20) as http:
        assert http.get("/healthz").status_code == 200
        listeners = [Listener(workers.url, ledger.session_id) for ledger in ledgers]
        with writing([workers.url], ledgers):
            wait_until(lambda: acknowledged(ledgers) > 300)
        for ledger, listener in zip(ledgers, listeners, strict=True):
            ledger.check(http)
            wait_until(lambda a=ledger, b=listener: set(a.answers) <= set(b.ids))  # type: ignore[misc]
            listener.stop()
            assert set(listener.ids) == set(ledger.answers)
            assert len(listener.ids) == len(ledger.answers)
    assert workers.stop(signal.SIGTERM) == 0
    assert not [line for line in workers.lines if "Traceback" in line]


def test_a_worker_that_dies_is_replaced(workers: Server) -> None:
    with httpx.Client(base_url=workers.url, timeout=20) as http:
        assert http.get("/healthz").status_code == 200
    pids = _spawned(workers)
    victim = min(pids)
    psutil.Process(victim).kill()
    wait_until(lambda: bool(_spawned(workers) - pids), 20)
    with httpx.Client(base_url=workers.url, timeout=20) as http:
        assert http.get("/healthz").status_code == 200
    assert workers.stop(signal.SIGTERM) == 0


def _spawned(server: Server) -> set[int]:
    return {child.pid for child in psutil.Process(server.process.pid).children() if _is_worker(child)}


def _is_worker(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "spawn" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # it has gone since it was listed
        return False
