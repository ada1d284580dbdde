"""The `relay` command and tokens: who may start what, and tokens that really work."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import jwt
import psutil
import pytest

from tests.protocol.talk import Address, Talk
from tests.server.tokens import ADMIN, CLIENT, SECRET, bearer, session_token
from tests.serving import DOORS, ROOT, Server, environment, running
from tests.store.redis_server import shared_server
from tests.test_cli import RELAY, refused, relay

WEB = httpx.Client(verify=False, timeout=20)


def test_an_address_that_others_reach_needs_tokens() -> None:
    line = refused(relay("serve", "--host", "0.0.0.0", "--port", "0"))
    assert line.startswith("relay: Others can reach 0.0.0.0, and no token is set: ")
    for way_out in ("--generate-token", "RELAY_CLIENT_TOKEN", "RELAY_AGENT_TOKEN", "RELAY_ADMIN_TOKEN", "--insecure"):
        assert way_out in line
    workers = ["--workers", "2", "--store", "redis://127.0.0.1:1"]
    assert "Others can reach" in refused(relay("serve", "--host", "::", "--port", "0", *workers))


@contextmanager
def serving(*arguments: str, stdout: Path, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """`relay serve` with these arguments; what it prints goes into a file."""
    with stdout.open("w") as printed:
        process = subprocess.Popen(
            [*DOORS["serve"], *arguments],
            cwd=ROOT,
            env=environment(**settings),
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def test_insecure_opens_it_and_says_so(tmp_path: Path) -> None:
    with serving("--host", "0.0.0.0", "--insecure", stdout=tmp_path / "out") as process:
        assert process.stderr is not None
        with process.stderr:
            lines = [process.stderr.readline() for _ in range(2)]
        assert ['"event":"server_insecure"' in line for line in lines] == [True, False]
        assert '"level":"warning"' in lines[0]
        assert '"auth":"insecure"' in lines[1]
    with running("uvicorn", insecure="true") as server:
        server.wait_for_line("server_insecure")
        forwarded = {"Host": "relay.example.org", "X-Forwarded-For": "203.0.113.1"}
        answer = WEB.post(f"{server.url}/prompt", json={"session_id": "s", "prompt": "x"}, headers=forwarded)
        assert answer.status_code == 200


def test_tokens_make_insecure_meaningless() -> None:
    with running("serve", insecure="true", client_token=CLIENT) as server:
        assert WEB.get(f"{server.url}/messages/s").status_code == 401
        assert not [line for line in server.lines if "server_insecure" in line]


def printed_tokens(text: str) -> dict[str, str]:
    return dict(re.findall(r"^  (RELAY_\w+)=(\S+)$", text, re.MULTILINE))


def test_generated_tokens_work(tmp_path: Path) -> None:
    with serving("--generate-token", stdout=tmp_path / "out") as process:
        server = Server(process)
        text = (tmp_path / "out").read_text()
        tokens = printed_tokens(text)
        assert set(tokens) == {"RELAY_CLIENT_TOKEN", "RELAY_AGENT_TOKEN", "RELAY_ADMIN_TOKEN", "RELAY_SECRET"}
        assert f"Bearer {tokens['RELAY_ADMIN_TOKEN']}" in text
        body = {"session_id": "s", "prompt": "x"}
        statuses = [
            WEB.post(f"{server.url}/prompt", json=body, headers=bearer(tokens[f"RELAY_{role}_TOKEN"])).status_code
            for role in ("CLIENT", "AGENT", "ADMIN")
        ]
        assert statuses == [200, 403, 200]
        created = relay("token", "create", "--session", "s", "--role", "agent", secret=tokens["RELAY_SECRET"])
        with Address(server.url, created.stdout.strip()).client() as http:
            assert len(Talk(http, "s").pending()) == 2
        assert WEB.get(f"{server.url}/messages/s").status_code == 401
        assert not [line for line in server.lines for token in tokens.values() if token in line]


def test_only_what_is_missing_is_generated_also_for_workers(tmp_path: Path) -> None:
    given = {"client_token": CLIENT, "secret": SECRET}
    arguments = ["--generate-token", "--workers", "2", "--store", shared_server().url]
    with serving(*arguments, stdout=tmp_path / "out", **given) as process:
        server = Server(process)
        text = (tmp_path / "out").read_text()
        tokens = printed_tokens(text)
        assert set(tokens) == {"RELAY_AGENT_TOKEN", "RELAY_ADMIN_TOKEN"}
        assert CLIENT not in text
        assert SECRET not in text
        for token in (CLIENT, *tokens.values(), session_token("admin", "*")):
            for _ in range(4):  # of both workers, most probably
                assert WEB.get(f"{server.url}/messages/none", headers=bearer(token)).status_code == 404


def test_no_token_is_made_if_none_is_missing(tmp_path: Path) -> None:
    given = {"client_token": CLIENT, "agent_token": CLIENT + "2", "admin_token": ADMIN, "secret": SECRET}
    with serving("--generate-token", stdout=tmp_path / "out", **given) as process:
        server = Server(process)
        assert (tmp_path / "out").read_text() == "All tokens are set already: none was made.\n"
        assert WEB.get(f"{server.url}/sessions", headers=bearer(ADMIN)).status_code == 200


def shown(token: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """`relay token show` with the token on standard input."""
    return subprocess.run(
        [RELAY, "token", "show"],
        input=token,
        cwd=ROOT,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_token_is_created_and_shown() -> None:
    created = relay("token", "create", "--role", "agent", "--session", "team-*", "--expires", "15m", secret=SECRET)
    assert created.returncode == 0
    [token] = created.stdout.split()
    claims = jwt.decode(token, SECRET, algorithms=["HS256"])
    assert (claims["role"], claims["sid"]) == ("agent", "team-*")
    assert 890 < claims["exp"] - time.time() <= 900
    told = shown(created.stdout, secret=f"{'n' * 32},{SECRET}")
    assert told.returncode == 0
    assert re.fullmatch(r"role      agent\nsession   team-\*\nexpires   .* UTC \(in 8\d\d s\)\n", told.stdout)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (session_token(lasts=-5), "the token has expired"),
        (session_token(nbf=time.time() + 600), "the token is not valid yet"),
        (jwt.encode({"role": "client", "sid": "s", "exp": 2**40}, "x" * 32), "it was not signed with RELAY_SECRET"),
        ("nonsense", "it was not signed with RELAY_SECRET"),
        ("", "it was not signed with RELAY_SECRET"),
    ],
    ids=["expired", "not yet", "foreign", "nonsense", "empty"],
)
def test_a_token_that_would_be_refused_ends_with_4(token: str, why: str) -> None:
    told = shown(token, secret=SECRET)
    assert (told.returncode, told.stdout) == (4, "")
    assert told.stderr == f"relay: this relay would refuse it: {why}.\n"


def test_tokens_need_a_secret() -> None:
    for run in (relay("token", "create", "--session", "s"), shown(session_token())):
        assert refused(run) == (
            "relay: RELAY_SECRET is not set. Put the relay's into .env or the environment; if it has none, make one "
            "for both: openssl rand -hex 32"
        )


@pytest.mark.parametrize("expires", ["0h", "24", "1.5h", "1000000000d"])
def test_a_time_that_is_none_is_wrong_usage(expires: str) -> None:
    run = relay("token", "create", "--session", "s", "--expires", expires, secret=SECRET)
    assert (run.returncode, run.stdout) == (2, "")
    assert "write a number and s, m, h or d, such as 24h" in re.sub(r"\s+|│", " ", run.stderr)


def test_a_session_that_is_none_is_wrong_usage() -> None:
    assert relay("token", "create", "--session", "", secret=SECRET).returncode == 2
    assert relay("token", "create", secret=SECRET).returncode == 2
    assert relay("token", "create", "--session", "s", "--role", "root", secret=SECRET).returncode == 2
