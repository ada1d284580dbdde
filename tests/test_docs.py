"""What the documentation says is so: its commands run, and nothing is missing from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from relay.config import Settings
from relay.environment import env_names
from relay.errors import ErrorCode
from relay.server.app import create_app
from tests.protocol.talk import wait_until
from tests.server.tokens import AGENT, CLIENT
from tests.serving import ROOT, Server, running

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(sh|json|text)\n(.*?)```", re.DOTALL)


def flow(number: int) -> list[tuple[str, str]]:
    """The code blocks of one flow: language and text."""
    section = README.split(f"<!-- flow {number} -->")[1].split("\n## ")[0].split("\n### ")[0]
    return BLOCK.findall(section)


class Terminal:
    """A person's terminal: runs what the README says, in the checkout, against this server instead of port 8000."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.listeners: list[Listener] = []
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "websockets").symlink_to(Path(sys.executable).parent / "websockets")

    def run(self, script: str) -> str:
        script = script.replace("http://127.0.0.1:8000", self.server.url)
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return run.stdout

    def listen(self, command: str) -> None:
        command = command.replace("ws://127.0.0.1:8000", self.server.ws_url)
        self.listeners.append(Listener(command, self.folder))


class Listener:
    """The README's WebSocket client, with a person in front of it who types nothing."""

    def __init__(self, command: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            command.split(), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.output = ""
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        wait_until(lambda: "Connected to" in self.output)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def shows(self, expected: str) -> None:
        wait_until(lambda: re.search(pattern(expected), self.output) is not None)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.wait()
        self.thread.join()
        self.process.stdout.close()


def pattern(shown: str) -> str:
    """A regular expression for output in which … stands for what differs from run to run."""
    return re.escape(shown.strip()).replace("…", '[^",}]+')


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with running() as server:
        terminal = Terminal(server, tmp_path)
        yield terminal
        for listener in terminal.listeners:
            listener.close()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_readmes_flow_works_word_for_word(terminal: Terminal, number: int) -> None:
    output = ""
    for language, text in flow(number):
        if language == "sh" and text.startswith(".venv/bin/websockets"):
            terminal.listen(text.strip())
        elif language == "sh":
            output = terminal.run(text)
        elif text.startswith('{"type":"message"'):
            assert terminal.listeners
            for listener in terminal.listeners:
                listener.shows(text)
        else:
            assert re.fullmatch(pattern(text), output.strip()), output
    assert output


def test_the_readmes_first_minute_works(terminal: Terminal) -> None:
    minute = README.split("## One minute")[1].split("\n## ")[0]
    (_, start), (_, post), (_, look) = BLOCK.findall(minute)
    command = [*start.split(), terminal.server.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline().startswith("Answering prompts of session 'abc'")
        client_msg_id = json.loads(terminal.run(post))["client_msg_id"]
        assert agent.stdout.readline() == f"answered {client_msg_id}\n"
        agent.kill()
    texts = [message["data"].get("text") for message in json.loads(terminal.run(look))["messages"]]
    assert texts == [None, "You said: Hello"]


def test_every_setting_is_in_the_readme_and_in_the_example_file() -> None:
    example = (ROOT / ".env.example").read_text()
    for name, variable in env_names().items():
        assert f"`{variable}`" in README, variable
        default = getattr(Settings.model_fields[name].default, "value", Settings.model_fields[name].default)
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        assert f"#{variable}={shown}\n" in example, variable


def test_every_endpoint_is_in_the_protocol() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text()
    for path, operations in create_app(Settings.model_construct()).openapi()["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path}`" in protocol


def test_every_error_code_has_a_class_and_a_row() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    for code in ErrorCode:
        assert f"| `{code.value}` |" in page


def test_every_row_of_the_reading_has_a_test() -> None:
    rows = re.findall(r"^\| (\d{1,2}) \|", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) == 24
    for row in rows:
        assert f"def test_row_{int(row):02d}_" in tests, row


@pytest.mark.parametrize("page", [*sorted(path.name for path in ROOT.glob("*.md")), "docs"])
def test_links_lead_somewhere(page: str) -> None:
    for path in (ROOT / page).glob("*.md") if page == "docs" else [ROOT / page]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_generated_pages_are_in_step() -> None:
    run = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_no_file_names_a_machine_or_a_registry() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return  # an unpacked release
    files = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        text = (ROOT / name).read_text(errors="ignore") if (ROOT / name).exists() else ""
        assert len(ROOT.parts) < 3 or str(ROOT) not in text, name


def test_the_agent_of_the_examples_takes_its_token_from_the_environment() -> None:
    command = [sys.executable, "examples/echo_agent.py", "abc"]
    prompt = {"session_id": "abc", "client_msg_id": "p1", "prompt": "Hello"}
    with running(client_token=CLIENT, agent_token=AGENT) as server:
        refused = subprocess.run([*command, server.url], cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert refused.returncode == 1
        assert "An agent's token goes into RELAY_TOKEN." in refused.stderr
        httpx.post(
            f"{server.url}/prompt", json=prompt, headers={"Authorization": f"Bearer {CLIENT}"}
        ).raise_for_status()
        with subprocess.Popen(
            [*command, server.url],
            cwd=ROOT,
            env={**os.environ, "RELAY_TOKEN": AGENT},
            stdout=subprocess.PIPE,
            text=True,
        ) as agent:
            assert agent.stdout is not None
            assert agent.stdout.readline().startswith("Answering prompts of session 'abc'")
            assert agent.stdout.readline() == "answered p1\n"
            agent.kill()
