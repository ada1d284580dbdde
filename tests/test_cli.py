"""The `relay` command: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay import __version__
from tests.serving import DOORS, ROOT, environment

RELAY = DOORS["serve"][0]


def relay(*arguments: str, cwd: Path = ROOT, **settings: object) -> subprocess.CompletedProcess[str]:
    env = environment(**settings) | {"NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run([RELAY, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=30)


def test_version() -> None:
    assert relay("--version").stdout == f"relay {__version__}\n"


def test_without_arguments_it_shows_its_help() -> None:
    assert "serve" in relay().stdout


def test_help_has_every_flag_and_examples_that_are_true() -> None:
    shown = relay("serve", "--help").stdout
    for flag in ("--host", "--port", "--store", "--history", "--log-level", "--log-format"):
        assert flag in shown
    assert "relay serve --port 0" in shown
    assert "Exit codes" in shown


def test_help_does_not_load_the_web_stack() -> None:
    script = "import sys, relay.cli; sys.exit('fastapi' in sys.modules or 'uvicorn' in sys.modules)"
    assert subprocess.run([str(Path(RELAY).parent / "python"), "-c", script], cwd=ROOT, check=False).returncode == 0


def refused(run: subprocess.CompletedProcess[str]) -> str:
    """What it says when it cannot start: one line, no traceback, exit code 3."""
    assert run.returncode == 3, run.stderr
    assert run.stdout == ""
    [line] = run.stderr.splitlines()
    return line


def test_a_taken_port_is_named_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(relay("serve", "--port", str(port))) == (
            f"relay: Port {port} on 127.0.0.1 is taken. Stop the program that uses it, or choose another: "
            f"relay serve --port {port + 1}"
        )


def test_an_address_of_another_machine_is_named() -> None:
    assert "192.0.2.1" in refused(relay("serve", "--host", "192.0.2.1"))
    assert "'no such host' is not an address" in refused(relay("serve", "--host", "no such host"))


def test_a_value_out_of_bounds_is_named_with_its_bound() -> None:
    assert refused(relay("serve", ping_seconds="-1")) == (
        "relay: RELAY_PING_SECONDS: input should be greater than 0. See docs/settings.md for what it takes."
    )
    assert refused(relay("serve", port="99999")).startswith("relay: RELAY_PORT: input should be less than or equal to")
    assert "RELAY_SESSION_TTL_SECONDS: input should be a finite number" in refused(
        relay("serve", session_ttl_seconds="inf")
    )
    assert "RELAY_LOG_LEVEL" in refused(relay("serve", log_level="loud"))


def test_a_name_that_is_almost_a_setting_is_refused_with_the_nearest_one() -> None:
    assert refused(relay("serve", ping_second="5")) == (
        "relay: RELAY_PING_SECOND is not a setting. Did you mean RELAY_PING_SECONDS?"
    )


def test_a_mistyped_name_in_a_dotenv_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("RELAY_MAX_SESSION=5\n")
    assert "Did you mean RELAY_MAX_SESSIONS?" in refused(relay("serve", cwd=tmp_path))


def test_a_store_that_does_not_exist_is_refused() -> None:
    assert refused(relay("serve", "--store", "mongodb://x")) == (
        "relay: RELAY_STORE_URL: there is no store for 'mongodb:'. Use memory://, sqlite:///relay.db or "
        "redis://host:6379/0."
    )
    assert refused(relay("serve", "--store", "sqlite://")) == (
        "relay: RELAY_STORE_URL names no file. For example: sqlite:///relay.db"
    )


@pytest.mark.parametrize("store", ["memory", "memory:", "redis:/"])
def test_half_a_store_url_does_not_become_a_file(store: str, tmp_path: Path) -> None:
    scheme = store.rstrip(":/")
    assert refused(relay("serve", "--store", store, cwd=tmp_path)) == (
        f"relay: RELAY_STORE_URL: '{store}' would be a file. Write {scheme}://, or ./{store} for the file."
    )
    assert not list(tmp_path.iterdir())


def test_wrong_usage_ends_with_2() -> None:
    assert relay("serve", "--prot", "1").returncode == 2
    assert relay("sevre").returncode == 2


def test_main_app_refuses_bad_settings_with_the_same_sentence() -> None:
    run = subprocess.run(
        DOORS["uvicorn"], cwd=ROOT, env=environment(max_sessions=0), capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 3
    assert "relay: RELAY_MAX_SESSIONS: input should be greater than or equal to 1." in run.stderr
    assert "Traceback" not in run.stderr


SEVERAL = (
    "relay: 2 workers cannot share memory://: each process would have sessions of its own, or find the file taken. "
    "Use one worker, or a store for several: --store redis://127.0.0.1:6379/0"
)


def test_several_workers_on_a_store_that_cannot_be_shared_are_refused() -> None:
    assert refused(relay("serve", "--port", "0", "--workers", "2")) == SEVERAL
    assert "2 workers cannot share relay.db" in refused(relay("serve", "--workers", "2", "--store", "relay.db"))
    for extra, variables in ((["--workers", "2"], {}), ([], {"WEB_CONCURRENCY": "2"})):
        run = subprocess.run(
            [*DOORS["uvicorn"], *extra],
            cwd=ROOT,
            env=environment() | variables,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert SEVERAL in run.stderr
        assert "Traceback" not in run.stderr


def started(arguments: list[str], cwd: Path, env: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Starts a relay, reads its first line, stops it."""
    process = subprocess.Popen([RELAY, *arguments], cwd=cwd, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process, process.stderr:
        lines: list[dict[str, Any]] = []
        while not lines or lines[-1]["event"] != "server_started":
            lines.append(json.loads(process.stderr.readline()))
        process.send_signal(signal.SIGTERM)
        return process.wait(15), {"warnings": lines[:-1], **lines[-1]}


def test_flags_win_over_the_environment_and_that_over_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("RELAY_PORT=1\nRELAY_HOST=127.0.0.3\n")
    env = environment(port=2, host="127.0.0.2")
    code, line = started(["serve", "--port", "0"], tmp_path, env)
    assert code == 0
    assert str(line["url"]).startswith("http://127.0.0.2:")


def test_the_bare_port_variable_is_honoured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    _, line = started(["serve"], tmp_path, environment() | {"PORT": str(port)})
    assert line["url"] == f"http://127.0.0.1:{port}"


def test_an_unknown_relay_variable_is_logged_and_does_no_harm(tmp_path: Path) -> None:
    code, line = started(["serve", "--port", "0"], tmp_path, environment(service_host="10.0.0.1"))
    assert code == 0
    assert [(w["event"], w["name"]) for w in line["warnings"]] == [("unknown_setting", "RELAY_SERVICE_HOST")]


def test_the_first_line_says_where_it_is_and_in_what_state(tmp_path: Path) -> None:
    _, line = started(["serve", "--port", "0"], tmp_path, environment())
    assert line["docs"] == f"{line['url']}/docs"
    assert (line["store"], line["auth"], line["version"]) == ("memory://", "loopback", __version__)


def on_a_terminal(until: Callable[[str], bool]) -> str:
    """What a person sees who starts the relay and presses Ctrl+C."""
    master, terminal = pty.openpty()
    process = subprocess.Popen([RELAY, "serve", "--port", "0"], cwd=ROOT, env=environment(), stderr=terminal)
    os.close(terminal)
    screen = ""
    deadline = time.monotonic() + 20
    while not until(screen) and time.monotonic() < deadline:
        if select.select([master], [], [], 1)[0]:
            screen += os.read(master, 65536).decode()
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    os.close(master)
    return re.sub(r"\x1b\[[0-9;]*m", "", screen)


def test_on_a_terminal_it_shows_a_banner() -> None:
    screen = on_a_terminal(lambda screen: "Ctrl+C" in screen)
    url = re.search(r"http://127\.0\.0\.1:\d+", screen)
    assert url is not None
    for part in (f"Relay {__version__}", f"{url[0]}/docs", "memory://", "auth", "Press Ctrl+C to stop."):
        assert part in screen


def test_one_process_that_is_killed_frees_its_port_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    for _ in range(2):
        process = subprocess.Popen(
            [RELAY, "serve", "--port", port], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        with process, process.stderr:
            assert json.loads(process.stderr.readline())["event"] == "server_started"
            process.kill()
