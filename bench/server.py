"""One candidate as a running process, pinned to the server's core, with its store if it needs one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.candidates import Candidate, Store
from bench.machine import BUILD, SERVER_CORE, cpu_seconds, family, memory_kb, pin
from tests.store.redis_server import RedisServer, free_port

START_SECONDS = 20.0
STOP_SECONDS = 10.0
DEFAULT_PING_SECONDS = 30


class DidNotStart(Exception):
    """With the end of its log."""


class Server:
    """Answers on `port` from the moment it exists until `stop`."""

    def __init__(self, candidate: Candidate, folder: Path, ping_seconds: int = DEFAULT_PING_SECONDS) -> None:
        self.candidate = candidate
        self.port = free_port()
        self.valkey = _start_valkey(folder / "valkey") if candidate.store is Store.REDIS else None
        values = {
            "PORT": str(self.port),
            "FOLDER": str(folder),
            "PING": str(ping_seconds),
            "STORE": self._store_url(folder),
        }
        for name, template in candidate.files.items():
            (folder / name).write_text(_fill(template, values))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        environment = {name: _fill(value, values) for name, value in candidate.environment.items()}
        # A file, as under systemd or in a container: writing the log is part of the work.
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [_fill(part, values) for part in candidate.command],
                env={**inherited, **environment},
                cwd=folder,  # where no .env of a developer lies
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: pin(set(candidate.cores)),
            )
        self._wait_until_healthy()

    def pids(self) -> list[int]:
        """Its processes."""
        return family(self.process.pid)

    def store_pids(self) -> list[int]:
        """The processes of its store, whose CPU is counted apart."""
        return [self.valkey.process.pid] if self.valkey else []

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        return cpu_seconds(self.process.pid)

    def memory_kb(self) -> int:
        """What it holds now."""
        return memory_kb(self.process.pid)

    def stop(self) -> None:
        """The end, in order if it can be had soon."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(STOP_SECONDS)
        except ProcessLookupError:
            self.process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.valkey:
            self.valkey.stop()

    def _store_url(self, folder: Path) -> str:
        if self.valkey:
            return self.valkey.url
        return f"sqlite:///{folder}/relay.db" if self.candidate.store is Store.SQLITE else "memory://"

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise DidNotStart(self._log.read_text(errors="replace")[-500:].strip())
            time.sleep(0.05)
        time.sleep(self.candidate.settle_seconds)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def running(candidate: Candidate, ping_seconds: int = DEFAULT_PING_SECONDS) -> Iterator[Server]:
    """A server in a folder of its own, and neither afterwards. Raises DidNotStart."""
    with ExitStack() as stack:
        (BUILD / "run").mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{candidate.name}-", dir=BUILD / "run"))
        folder.chmod(0o755)  # nginx's worker is another user
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = Server(candidate, folder, ping_seconds)
        stack.callback(server.stop)
        yield server


def _start_valkey(folder: Path) -> RedisServer:
    valkey = RedisServer(folder)
    # Beside the relay: the load generator must have its core to itself.
    pin({SERVER_CORE}, valkey.process.pid)
    return valkey


def _fill(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template
