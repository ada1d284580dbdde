"""The load generator: a small C program, compiled when it is first needed. `load/load.c` tells what it can do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.machine import BUILD, LOAD_CORE, pin
from bench.server import Server

SOURCES = Path(__file__).parent / "load"
PROGRAM = BUILD / "load"
PAGE = 100
"""Messages in a page of history, as in load/talk.h."""
MOST_SECONDS = 300.0
"""A work that takes longer hangs: seeding 100,000 messages is the longest, half a minute on the slowest server."""


WARM_SECONDS = 0.5


class Missing(Exception):
    """Something that must be installed first; the sentence says what."""


def compile_load() -> None:
    """Compile it, unless that has been done since it was last changed. Raises Missing without a compiler."""
    files = sorted(SOURCES.glob("*.[ch]"))
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > max(file.stat().st_mtime for file in files):
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Missing("The load generator needs a C compiler. On Debian or Ubuntu: apt install gcc libc6-dev")
    sources = [str(file) for file in files if file.suffix == ".c"]
    BUILD.mkdir(exist_ok=True)
    subprocess.run([compiler, "-O2", "-std=gnu11", "-o", str(PROGRAM), *sources], check=True)


def command(server: Server, work: str, **options: object) -> list[str]:
    """The command line for a work against a server, which knows the port, token and processes itself."""
    given = {
        "port": server.port,
        "profile": server.candidate.profile,
        "token": server.candidate.token,
        "pids": ",".join(map(str, server.pids())),
        "store_pids": ",".join(map(str, server.store_pids())),
        **options,
    }
    return [str(PROGRAM), work, *(f"{name}={value}" for name, value in given.items())]


def run(server: Server, work: str, **options: object) -> dict[str, Any]:
    """Do a work and return what it cost; `error` says so if it could not be done, or not rightly."""
    try:
        done = subprocess.run(
            command(server, work, **options),
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
            preexec_fn=pin_to_load_core,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {MOST_SECONDS:.0f} s"}
    if not done.stdout.startswith("{"):
        return {"error": f"the load generator ended with {done.returncode}: {done.stderr.strip()[:300]}"}
    row: dict[str, Any] = json.loads(done.stdout)
    if row["wrong"] or not row["operations"]:
        row["error"] = f"{row['wrong']} wrong answers: {done.stderr.strip()[:300]}"
    return row


def warm(server: Server) -> None:
    """Go once down every path: what is imported, compiled or allocated only once belongs to no work."""
    run(server, "roundtrip", sessions=16, seconds=WARM_SECONDS, prefix="warm")


def pin_to_load_core() -> None:
    """For a child process, before it becomes the load generator."""
    pin({LOAD_CORE})
