"""Fuzz one target in this process, which libFuzzer then ends: `python -m fuzz.one prompt -runs=1000 FOLDER`."""

from __future__ import annotations

import shlex
import sys

import atheris

with atheris.instrument_imports(include=["fuzz", "relay", "uvicorn.protocols", "websockets"]):
    from fuzz.targets import TARGETS


def main() -> None:
    """The name of the target, then libFuzzer's own options."""
    name, *options = sys.argv[1:]
    # To minimise a corpus, libFuzzer starts itself again by this name, through a shell.
    program = shlex.join([sys.executable, "-m", "fuzz.one", name])
    with TARGETS[name].open() as target:
        atheris.Setup([program, *options], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
