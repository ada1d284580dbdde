"""The Makefile: what a newcomer meets first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import ROOT


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a copy that has no environment yet."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def test_make_alone_prints_help_that_names_every_target(tmp_path: Path) -> None:
    shown = make(tmp_path)
    assert shown.returncode == 0
    for line in (ROOT / "Makefile").read_text().splitlines():
        if line.startswith(".PHONY:"):
            for target in set(line.split()[1:]) - {"help"}:
                assert f"make {target} " in shown.stdout


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("*ensurepip*) exit 1", "Python's venv module is missing. On Debian or Ubuntu: apt install python3-venv"),
        ("*version_info*) exit 1", "Relay needs Python 3.10 or newer"),
    ],
    ids=["no venv", "old Python"],
)
def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, condition: str, sentence: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in {condition};; *) exec {sys.executable} "$@";; esac\n')
    python.chmod(0o755)
    run = make(tmp_path, "run", f"PYTHON={python}")
    assert run.returncode != 0
    assert sentence in run.stderr
    assert not (tmp_path / ".venv").exists()
