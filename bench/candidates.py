"""Every server that is measured, and how it is started. One that is not installed is left out with a sentence."""

from __future__ import annotations

import enum
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.machine import BUILD, LOAD_CORE, ROOT, SERVER_CORE

PEERS = Path(__file__).parent / "peers"
BIN = Path(sys.executable).parent
INSTALL_SECONDS = 120

ADMIN_TOKEN = "bench-admin-" + "t" * 32
RELAY_ENVIRONMENT = {
    # All features on: tokens, limits, metrics and the log as they are by default.
    "RELAY_ADMIN_TOKEN": ADMIN_TOKEN,
    "RELAY_CLIENT_TOKEN": "bench-client-" + "t" * 32,
    "RELAY_AGENT_TOKEN": "bench-agent-" + "t" * 32,
    "RELAY_STORE_URL": "@STORE@",
    "RELAY_PING_SECONDS": "@PING@",
    # Limits are checked, but so high that no work meets one: an error would be measured instead of the work.
    "RELAY_RATE_LIMIT": "100000000",
    "RELAY_MAX_SESSIONS": "10000000",
    "RELAY_MAX_PENDING_PER_SESSION": "100000000",
    "RELAY_MAX_SUBSCRIBERS": "100000",
    "RELAY_MAX_SUBSCRIBERS_PER_SESSION": "100000",
    "RELAY_MAX_WAITING_POLLS": "100000",
    "RELAY_MAX_WAITING_POLLS_PER_SESSION": "100000",
    "RELAY_MAX_CONNECTIONS": "100000",
    "RELAY_HISTORY_MAX_MESSAGES": "10000000",
    "RELAY_HISTORY_MAX_BYTES": str(64 * 1024**3),
    "RELAY_STORE_MAX_BYTES": str(64 * 1024**3),
}


class Store(str, enum.Enum):
    """Where a relay keeps its sessions; the peers only know memory."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    REDIS = "redis"


@dataclass(frozen=True)
class Candidate:
    """A server. In `command`, `environment` and `files` @PORT@, @FOLDER@, @PING@ and @STORE@ are filled in."""

    name: str
    title: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    profile: str = "relay"
    """The words it understands: those of the specification, or nchan's."""
    token: str = ""
    store: Store = Store.MEMORY
    cores: Sequence[int] = (SERVER_CORE,)
    only: frozenset[str] | None = None
    """The works it takes part in; None: all."""
    settle_seconds: float = 0.3


class NotInstalled(Exception):
    """Why a candidate is left out, and what to install."""


HEADLINE_WORKS = frozenset({"ingest", "fanout1", "fanout16", "roundtrip1", "roundtrip64", "latency", "herd"})
SERVE = [str(BIN / "relay"), "serve", "--host", "127.0.0.1", "--port", "@PORT@"]
# The relay's own log tells of every event; the flag only keeps uvicorn from telling it a second time.
ASGI = [str(BIN / "uvicorn"), "--app-dir", str(ROOT), "main:app", "--port", "@PORT@", "--no-access-log"]


def baseline() -> Candidate:
    """The obvious FastAPI version of the specification, as `uvicorn` runs it."""
    return Candidate(
        "baseline",
        "obvious FastAPI",
        [str(BIN / "uvicorn"), "--app-dir", str(ROOT), "bench.baseline:app", "--port", "@PORT@"],
        environment={"PING_SECONDS": "@PING@"},
    )


def relay(name: str, title: str, door: Sequence[str], store: Store) -> Candidate:
    """The relay through one of its doors."""
    return Candidate(name, title, door, environment=RELAY_ENVIRONMENT, token=ADMIN_TOKEN, store=store)


def two_workers() -> Candidate:
    """Two processes on one Redis. They need the load's core too, so only the CPU per operation can be compared."""
    return replace(
        relay("relay-redis-2", "relay serve --workers 2, Redis", [*SERVE, "--workers", "2"], Store.REDIS),
        cores=(SERVER_CORE, LOAD_CORE),
        only=HEADLINE_WORKS,
        settle_seconds=2.0,  # health is answered by the first worker that is up
    )


def nchan() -> Candidate:
    """nginx with nchan. Raises NotInstalled."""
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    how = "On Debian or Ubuntu: apt install nginx-light libnginx-mod-nchan"
    if nginx is None:
        raise NotInstalled(f"there is no nginx. {how}")
    built = subprocess.run([nginx, "-V"], capture_output=True, text=True, check=False).stderr
    folder = re.search(r"--modules-path=(\S+)", built)
    module = Path(folder[1] if folder else "/usr/lib/nginx/modules") / "ngx_nchan_module.so"
    if not module.exists():
        raise NotInstalled(f"nginx has no nchan. {how}")
    configuration = (PEERS / "nchan.conf").read_text().replace("@MODULE@", str(module))
    return Candidate(
        "nchan",
        "nginx + nchan",
        [nginx, "-c", "@FOLDER@/nginx.conf"],
        files={"nginx.conf": configuration},
        profile="nchan",
        only=HEADLINE_WORKS | {"idle", "subscribers"},  # it has no history, and its channels are no sessions
    )


def node() -> Candidate:
    """Node with `ws`, which npm installs into the build folder. Raises NotInstalled."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        raise NotInstalled("there is no node with npm. On Debian or Ubuntu: apt install nodejs npm")
    home = BUILD / "node"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "node.js"):
        shutil.copy(PEERS / name, home)
    if not (home / "node_modules" / "ws").exists():
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
        try:
            subprocess.run(install, cwd=home, check=True, capture_output=True, timeout=INSTALL_SECONDS)
        except (subprocess.SubprocessError, OSError) as exc:
            raise NotInstalled(f"npm could not install `ws` ({type(exc).__name__})") from None
    return Candidate("node", "Node ws", [program, str(home / "node.js"), "@PORT@", "@PING@"])


CANDIDATES: Mapping[str, Callable[[], Candidate]] = {
    "relay": lambda: relay("relay", "relay serve", SERVE, Store.MEMORY),
    "relay-sqlite": lambda: relay("relay-sqlite", "relay serve, SQLite", SERVE, Store.SQLITE),
    "relay-redis": lambda: relay("relay-redis", "relay serve, Redis", SERVE, Store.REDIS),
    "asgi": lambda: relay("asgi", "uvicorn main:app", ASGI, Store.MEMORY),
    "asgi-sqlite": lambda: relay("asgi-sqlite", "uvicorn main:app, SQLite", ASGI, Store.SQLITE),
    "asgi-redis": lambda: relay("asgi-redis", "uvicorn main:app, Redis", ASGI, Store.REDIS),
    "relay-redis-2": two_workers,
    "baseline": baseline,
    "nchan": nchan,
    "node": node,
}
"""By name, in the order of the tables."""


def found(names: Sequence[str], tell: Callable[[str], None]) -> list[Candidate]:
    """Those of them that can be started here; `tell` is told why of each that cannot."""
    here = []
    for name in names:
        try:
            here.append(CANDIDATES[name]())
        except NotInstalled as why:
            tell(f"Without {name}: {why}")
    return here
