"""10,000 sockets on which nothing happens: what each one weighs, and what a ping to all of them costs."""

from __future__ import annotations

import json
import subprocess
import time
from types import TracebackType
from typing import Any

from bench import load
from bench.candidates import Candidate
from bench.server import Server, running

NAME = "idle"
SOCKETS = 10_000
PING_SECONDS = 2
"""Instead of 30, so that several pings to all fit into a few seconds."""


def measure(candidate: Candidate, *, deflate: bool, sockets: int = SOCKETS) -> dict[str, Any]:
    """One row. With `deflate` the clients offer to compress, as every browser does; a server may accept that."""
    with running(candidate, ping_seconds=PING_SECONDS) as server:
        load.warm(server)
        memory, cpu = server.memory_kb(), server.cpu_seconds()
        with _Sockets(server, sockets, deflate=deflate) as clients:
            connect_cpu = server.cpu_seconds() - cpu
            time.sleep(1.0)
            row = {
                "operations": clients.told["open"],
                "deflated": clients.told["deflated"],
                "base_mb": memory / 1024,
                "connect_cpu_us": connect_cpu / sockets * 1e6,
                "socket_kb": (server.memory_kb() - memory) / sockets,
            }
            row.update(_pings(server, clients))
            row["socket_after_pings_kb"] = (server.memory_kb() - memory) / sockets
            row.update(_lateness(clients))
            if clients.told["wrong"] or clients.told["open"] < sockets:
                row["error"] = f"{clients.told['open']} of {sockets} open, {clients.told['wrong']} wrong"
            return row


class _Sockets:
    """The load generator while it holds sockets open."""

    def __init__(self, server: Server, sockets: int, *, deflate: bool) -> None:
        self._process = subprocess.Popen(
            load.command(server, "idle", sockets=sockets, deflate=int(deflate), prefix="idle"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            preexec_fn=load.pin_to_load_core,
        )
        self.told = self._line()

    def ask(self, command: str) -> dict[str, Any]:
        """What it has counted so far; "probe" makes it ask the server for its health from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self.told = self._line()
        return self.told

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"open": 0, "wrong": 1, "deflated": 0}')
        return told

    def __enter__(self) -> _Sockets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # it ends with its input


def _pings(server: Server, clients: _Sockets) -> dict[str, float]:
    before, cpu = clients.ask("tell")["frames"], server.cpu_seconds()
    time.sleep(2 * PING_SECONDS)
    received, used = clients.ask("tell")["frames"] - before, server.cpu_seconds() - cpu
    return {"pings": received, "cpu_us": used / received * 1e6 if received else 0.0}


def _lateness(clients: _Sockets) -> dict[str, float]:
    """How long a small request waits while pings go out: a server that is stuck in them answers late.

    Apart from the CPU of the pings, because the probes use some too.
    """
    clients.ask("probe")
    time.sleep(2.5 * PING_SECONDS)
    told = clients.ask("tell")
    return {"p50_us": told["p50_us"], "p99_us": told["p99_us"], "max_us": told["max_us"]}
