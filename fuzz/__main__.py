"""`python -m fuzz`: give every target its share of the runs, and say what came of it."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.targets import TARGETS, keep, kept

WORK = Path(".fuzz")
KEPT_BYTES = 30_000
"""At most so much is kept for each target: the tests run all of it each time."""

_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")


def main() -> int:
    """Returns 1 if any target failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="in all, shared by the targets")
    parser.add_argument("--keep", action="store_true", help="write what was found worth keeping to fuzz/corpus")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"some of: {', '.join(TARGETS)}")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    shares = sum(TARGETS[name].percent for name in names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(lambda name: _fuzz(name, arguments.runs * TARGETS[name].percent // shares), names)
        total = 0
        for runs in outcomes:
            if runs is None:
                return 1
            total += runs
    print(f"{total:,} runs, and nothing found")
    if arguments.keep:
        for name in names:
            _minimise(name)
    return 0


def _fuzz(name: str, runs: int) -> int | None:
    """How many runs there were; None if one of them found something."""
    found = WORK / name
    found.mkdir(parents=True, exist_ok=True)
    for data in kept(name):
        (found / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    words = WORK / f"{name}.dict"
    words.write_text("".join(f'"{_in_hex(word)}"\n' for word in TARGETS[name].words))
    crash = WORK / f"{name}-crash"
    crash.unlink(missing_ok=True)
    done = _libfuzzer(
        name, f"-runs={runs}", f"-dict={words}", f"-exact_artifact_path={crash}", "-timeout=20", str(found)
    )
    (WORK / f"{name}.log").write_text(done.stderr)
    if done.returncode:
        print(f"{name}: {WORK / name}.log says what failed", file=sys.stderr)
        if crash.exists():
            print(f"{name}: with the input {crash.read_bytes()!r}", file=sys.stderr)
        return None
    progress, end = _PROGRESS.findall(done.stderr)[-1], _DONE.search(done.stderr)
    assert end is not None
    runs, seconds = int(end[1]), max(int(end[2]), 1)
    print(
        f"{name:<15}{runs:>9,} runs {seconds:>6,} s {runs // seconds:>7,} exec/s"
        f"   cov {progress[0]}, features {progress[1]}, corpus {progress[2]}",
        flush=True,
    )
    return runs


def _in_hex(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _libfuzzer(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz.one", name, f"-max_len={TARGETS[name].max_bytes}", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        errors="replace",
        check=False,
    )


def _minimise(name: str) -> None:
    """Keep the fewest and shortest inputs that reach all that was reached."""
    with tempfile.TemporaryDirectory() as folder:
        _libfuzzer(name, "-merge=1", folder, str(WORK / name))
        inputs = sorted((path.read_bytes() for path in Path(folder).iterdir()), key=len)
    assert inputs, "libFuzzer could not minimise them"
    size, few = 0, []
    for data in inputs:
        size += len(repr(data)) + 1
        if size <= KEPT_BYTES:
            few.append(data)
    keep(name, few)
    print(f"{name}: {len(few)} of {len(inputs)} inputs kept")


if __name__ == "__main__":
    sys.exit(main())
