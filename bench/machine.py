"""The machine under the benchmark: its cores and limits, and what /proc knows of a process."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = Path(__file__).parent / ".build"
"""What is compiled, installed or kept for the length of a run. On the checkout's disk: a /tmp in memory would make
SQLite look as if a disk cost nothing."""

FILES_WANTED = 25_000
"""10,000 sockets, twice, and some room."""

PRIORITY = -10
"""So that whatever else runs here disturbs less; only root may."""

_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE = _CORES[0]
LOAD_CORE = _CORES[-1] if len(_CORES) == 1 else _CORES[1]


@dataclass(frozen=True)
class About:
    """Where and of what the figures were taken."""

    date: str
    commit: str
    cpu: str
    cores: int
    memory_gb: int
    system: str
    python: str


def about() -> About:
    """This machine, this checkout, now."""
    return About(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        commit=_git("rev-parse", "--short", "HEAD") + ("-dirty" if _git("status", "--porcelain", "src") else ""),
        cpu=_cpu_model(),
        cores=len(_CORES),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3),
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        python=platform.python_version(),
    )


def as_row(machine: About) -> dict[str, object]:
    """The first of the JSON lines."""
    return {"about": asdict(machine)}


def allow_many_files() -> int:
    """Raise the limit as far as it goes; every process started from here inherits it. Returns what was reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < FILES_WANTED:
        with suppress(ValueError, OSError):  # only root may go beyond
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_WANTED, FILES_WANTED))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def pin(cores: set[int], pid: int = 0) -> None:
    """Keep a process (0: this one) on these cores."""
    os.sched_setaffinity(pid, cores)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)


def family(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                found += family(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU used so far by a process, its threads and its children, to the nanosecond."""
    total = 0
    for member in family(pid):
        for schedstat in Path(f"/proc/{member}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(schedstat.read_text().split()[0])
    return total / 1e9


def memory_kb(pid: int) -> int:
    """Memory of a process and its children; what they share is counted once."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total


def _git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
