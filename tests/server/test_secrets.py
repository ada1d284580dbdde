"""Nothing secret is logged, counted, answered or shown by the process; what callers send cannot break a log line."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import httpx2 as httpx
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from relay.server.run import without_password
from tests.protocol.talk import Address, Talk, ok
from tests.server.tokens import ADMIN, AGENT, CLIENT, SECRET, SETTINGS, bearer, offer, session_token
from tests.serving import DOORS, ROOT, Server, environment, running
from tests.store.redis_server import RedisServer

PASSWORD = "the-p@ssword-of-the-store"
BAD = "a-token-that-nobody-has-given"


@contextmanager
def observed(door: str, output: Path, **settings: object) -> Iterator[Server]:
    """A relay whose standard output is kept too."""
    with output.open("wb") as stdout, running(door, stdout=stdout, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis that knows the relay by name and password."""
    redis = RedisServer(tmp_path_factory.mktemp("redis"), "--user", *f"relay on >{PASSWORD} ~* &* +@all".split())
    yield redis.url.replace("//", f"//relay:{PASSWORD}@")
    redis.stop()


class Watch:
    """Talks to a relay, and keeps everything that it says and every secret that it was told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.url, verify=False, timeout=20)
        self.secrets = {*SETTINGS.values(), PASSWORD, quote(PASSWORD), BAD}
        self.said: list[str] = []

    def ask(self, method: str, path: str, token: str | None, **more: object) -> httpx.Response:
        if token:
            self.secrets |= {token, offer(token)[1].removeprefix("relay.bearer.")}
        headers = bearer(token)
        answer = self.http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]
        self.said += [answer.text, str(answer.headers)]
        return answer

    def listen(self, session_id: str, token: str | None, query: str = "") -> None:
        try:
            with connect(
                f"{self.server.ws_url}/ws/{session_id}{query}",
                subprotocols=offer(token) if token else None,  # type: ignore[arg-type]
            ) as socket:
                self.said.append(str(socket.response and socket.response.headers))
        except InvalidStatus as refused:
            self.said += [refused.response.body.decode(), str(refused.response.headers)]

    def ticket(self, token: str) -> str:
        ticket = str(self.ask("POST", "/ticket", token).json()["ticket"])
        # The one answer that has to hold it.
        self.said = [text for text in self.said if ticket not in text]
        self.secrets.add(ticket)
        return ticket


def use_everything(watch: Watch) -> None:
    tokens = [CLIENT, AGENT, ADMIN, session_token(), session_token("agent"), session_token("admin", "*")]
    wrong = [BAD, session_token(lasts=-9), CLIENT[:-1] + "x", session_token()[:-3], "x" * 5000]
    for token in [*tokens, *wrong, None]:
        body = {"session_id": "own", "prompt": "x", "client_msg_id": "p1", "text": "y"}
        for method, path in (
            ("POST", "/prompt"),
            ("POST", "/response"),
            ("GET", "/messages/own"),
            ("GET", "/sessions"),
        ):
            watch.ask(method, path, token, json=body if method == "POST" else None)
        for path in ("/metrics", "/openapi.json", "/docs", "/nowhere", "/sessions/own", "/readyz"):
            watch.ask("GET", path, token)
        watch.listen("own", token)
    for name in ("ticket", "tick%65t", "token", "access_token"):
        ticket = watch.ticket(ADMIN)
        for _ in range(2):
            watch.listen("own", None, f"?{name}={ticket}")
            watch.ask("GET", f"/messages/own?{name}={ticket}", None)
    watch.listen("own", None, f"?ticket={BAD}")
    watch.ask("GET", "/messages/own", None, auth=("user", BAD))
    watch.secrets.add(base64.b64encode(f"user:{BAD}".encode()).decode())


@pytest.mark.parametrize("door", DOORS)
def test_no_secret_shows_anywhere(door: str, store_url: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "store_url": store_url, "rate_limit": 0, "failed_logins_per_minute": 0}
    with observed(door, tmp_path / "stdout", **settings, log_level="debug") as server:
        watch = Watch(server)
        use_everything(watch)
        watch.said += psutil.Process(server.process.pid).cmdline()
        watch.http.close()
    said = "\n".join([*watch.said, *server.lines, (tmp_path / "stdout").read_text()])
    assert "request_refused" in said
    assert "prompt_stored" in said
    if door == "uvicorn":
        assert "GET /messages/own?access_token=… HTTP/1.1" in said
    assert not [secret for secret in watch.secrets if secret in said]
    assert SECRET in watch.secrets


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}[@127.0.0.1:1/0",
        f"redis://:{PASSWORD}/@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={PASSWORD}",
        f"mongodb://user:{PASSWORD}@127.0.0.1/x",
    ],
)
def test_a_store_that_there_is_not_is_refused_without_its_password(url: str) -> None:
    run = subprocess.run(
        [*DOORS["serve"], "--workers", "2"],
        cwd=ROOT,
        env=environment(store_url=url, log_level="debug"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 3
    for part in (PASSWORD, *PASSWORD.split("@")):
        assert part not in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("relay.db", "relay.db"),
        ("sqlite:///a@b/relay.db", "sqlite:///a@b/relay.db"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://relay:secret@127.0.0.1:6379/0", "redis://…@127.0.0.1:6379/0"),
        ("redis://:sec@ret@[::1]:6379/0", "redis://…@[::1]:6379/0"),
        ("redis+sentinel://a:1,b:2/mymaster?sentinel_password=secret", "redis+sentinel://a:1,b:2/mymaster"),
        ("redis+sentinel://:x@a:1/mymaster?sentinel_password=sec@ret", "redis+sentinel://…"),
        ("redis://:sec/ret@a:1", "redis://…"),
        ("redis://:sec?ret@a:1", "redis://…"),
        ("redis://:sec#ret@a:1", "redis://…"),
        ("redis://:sec[ret@a:1", "…"),
    ],
)
def test_a_store_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


ODD = {
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "right to left": "\u202eetirw",
    "isolate": "\u2067x\u2069",
    "zero width": "\u200b\ufeff",
    "outside the BMP": "\U000e0001",
    "a field": 'x" event="server_stopped',
    "another": "x event=server_stopped level='error'",
}
"""Parts of ids that are allowed."""

RAW = [
    b"GET /FAKE%0AFAKE%1B[31m HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /messages/FAKE%0D%0AFAKE HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /messages/FAKE%C2%85FAKE%E2%80%A8FAKE HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /messages/own?\x1b[31mFAKE HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /messages/own?a=%0AFAKE\x80\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /messages/own?\xe2\x80\xa8FAKE HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-FAKE: a\x1b[2J\r\nUser-Agent: \x1bFAKE\r\n\r\n",
    b"\x1b[31mFAKE / HTTP/1.1\r\n\r\n",
    b"GET /ws/FAKE%0AFAKE%1B HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    b"GET /ws/own?FAKE\x80%0A HTTP/1.1\r\nHost: x\r\nUpgrade: \x1bFAKE\r\nConnection: Upgrade\r\n\r\n",
]


def send_raw(server: Server, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while connection.recv(65_536):
                pass


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("door", DOORS)
def test_what_callers_send_stays_within_its_line(door: str, log_format: str, tmp_path: Path) -> None:
    with observed(door, tmp_path / "stdout", log_level="debug", log_format=log_format) as server:
        with Address(server.url).client() as http:
            for part in ODD.values():
                talk = Talk(http, f"FAKE{part}FAKE")
                ok(http.post("/prompt", json={"session_id": talk.session_id, "prompt": "x", "client_msg_id": part}))
                talk.respond(part, assistant_msg_id=part)
            for request in RAW:
                send_raw(server, request)
            Talk(http, "own").round_trip()
        server.stop()
    output = "\n".join(server.lines) + (tmp_path / "stdout").read_bytes().decode()
    assert not re.search(r"[^\x20-\x7e\n]", output.replace("…", "").replace("⚠", "")), "something odd came through"
    assert not [line for line in output.split("\n") if line.lstrip().startswith("FAKE")]
    assert "Traceback" not in output
    ours = [line for line in server.lines if "prompt_stored" in line]
    assert len(ours) == len(ODD) + 1
    if log_format == "json":
        ids = [json.loads(line)["session_id"] for line in ours]
        assert ids == [*(f"FAKE{part}FAKE" for part in ODD.values()), "own"]
    else:
        assert r"session_id='FAKE\u2028FAKE'" in ours[0]
        assert not [line for line in ours if " event=server_stopped " in line.replace("'", '"').split('"')[0]]
