"""Starts a real relay in a process of its own, the way a user would, and talks to it only from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
START_SECONDS = 20.0
_URL = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]):\d+")

DOORS = {
    "serve": [str(Path(sys.executable).parent / "relay"), "serve", "--port", "0"],
    "uvicorn": [str(Path(sys.executable).parent / "uvicorn"), "main:app", "--port", "0"],
}
"""Both ways to start it. The first is the README's, the second the specification's."""


class Server:
    """A relay process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()
        self.url = _URL.search(self.wait_for_line(_URL))[0]  # type: ignore[index]
        self.ws_url = self.url.replace("http", "ws", 1)

    def _collect(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self.lines.append("<end>")
            self._changed.notify_all()

    def wait_for_line(self, pattern: re.Pattern[str] | str, seconds: float = START_SECONDS) -> str:
        """The first line that the process has written, or writes soon, in which the pattern is found."""
        deadline = time.monotonic() + seconds
        seen = 0
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if re.search(pattern, line):
                        return line
                    if line == "<end>":
                        raise AssertionError("the server has ended:\n" + "\n".join(self.lines))
                seen = len(self.lines)
                if not self._changed.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no line like {pattern!r} in:\n" + "\n".join(self.lines))

    def events(self) -> list[dict[str, Any]]:
        """The JSON lines of its log."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def memory_bytes(self) -> int:
        """What the process holds in memory now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 15.0) -> int:
        """Tell it to stop and wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._collector.join()
        return code


def environment(**settings: object) -> dict[str, str]:
    """The environment of a machine where nothing is configured, but for `settings` (ping_seconds=1 → RELAY_PING_…)."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "PORT"))}
    return clean | {f"RELAY_{name.upper()}": str(value) for name, value in settings.items()}


@contextmanager
def running(door: str = "serve", *, stdout: Any = subprocess.DEVNULL, **settings: object) -> Iterator[Server]:
    """A relay that runs for the length of the block."""
    process = subprocess.Popen(
        DOORS[door], cwd=ROOT, env=environment(**settings), stderr=subprocess.PIPE, stdout=stdout, text=True
    )
    try:
        server = Server(process)
        yield server
        server.stop()
    finally:
        process.kill()
        process.wait()
