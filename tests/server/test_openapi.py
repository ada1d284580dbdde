"""/openapi.json tells the truth, and its examples work when pasted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from relay.server.openapi import PROMPT_EXAMPLE, RESPONSE_EXAMPLE
from tests.protocol.talk import ok
from tests.server.tokens import ADMIN, bearer
from tests.serving import Server, running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        client.delete("/sessions/abc")
        yield client


def schemathesis(server: Server, folder: Path, *options: str) -> None:
    """Every operation is tried with many inputs, good and bad; nothing may be found."""
    # A poll that waits for half a minute tells no more than one that waits for a moment.
    (folder / "schemathesis.toml").write_text(
        """
        [[operations]]
        include-path = "/prompts/{session_id}"
        parameters = { "query.timeout" = 0.01 }
        """
    )
    run = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"),
            *("run", f"{server.url}/openapi.json", "--checks", "all"),
            *("--seed", "1", "--request-timeout", "10", *options),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr
    assert "Operations:       12 selected / 12 total" in run.stdout
    assert not [event for event in server.events() if event["event"] == "internal_error"]


@pytest.mark.timeout(180)
def test_schemathesis_finds_nothing(server: Server, http: httpx.Client, tmp_path: Path) -> None:
    ok(http.post("/prompt", json=PROMPT_EXAMPLE))
    schemathesis(server, tmp_path, "--max-examples", "50")


@pytest.mark.timeout(180)
def test_schemathesis_finds_no_way_past_the_tokens(tmp_path: Path) -> None:
    """Among its checks: whatever declares a token refuses a request without one, and with a wrong one."""
    with running("serve", admin_token=ADMIN, rate_limit=0, failed_logins_per_minute=0) as server:
        headers = bearer(ADMIN)
        ok(httpx.post(f"{server.url}/prompt", json=PROMPT_EXAMPLE, headers=headers, verify=False))
        schemathesis(server, tmp_path, "--max-examples", "15", "--header", f"Authorization: {headers['Authorization']}")
        metrics = httpx.get(f"{server.url}/metrics", headers=headers, verify=False).text
        # It has really tried both.
        for code in ("token_required", "invalid_token"):
            assert f'relay_errors_total{{code="{code}"}}' in metrics


def test_the_examples_work_when_pasted(http: httpx.Client) -> None:
    paths = ok(http.get("/openapi.json"))["paths"]

    def example(path: str, method: str) -> Any:
        return paths[path][method]["requestBody"]["content"]["application/json"]["example"]

    def shown(path: str, method: str) -> Any:
        return paths[path][method]["responses"]["200"]["content"]["application/json"]["example"]

    assert ok(http.post("/prompt", json=example("/prompt", "post"))) == shown("/prompt", "post")
    assert http.get("/prompts/abc").json()[0].keys() == shown("/prompts/{session_id}", "get")[0].keys()
    accepted = ok(http.post("/response", json=example("/response", "post")))
    assert accepted == shown("/response", "post") | {"recipients": 0}
    assert ok(http.get("/messages/abc")).keys() == shown("/messages/{session_id}", "get").keys()
    assert ok(http.get("/sessions/abc")).keys() == shown("/sessions/{session_id}", "get").keys()
    assert ok(http.delete("/sessions/abc")) == shown("/sessions/{session_id}", "delete")
    assert RESPONSE_EXAMPLE["client_msg_id"] == PROMPT_EXAMPLE["client_msg_id"]


def test_every_error_that_is_documented_has_the_one_shape(http: httpx.Client) -> None:
    for path in ok(http.get("/openapi.json"))["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    content = response["content"]["application/json"]
                    assert content["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}
                    for shown in content["examples"].values():
                        assert {"error", "code"} <= shown["value"].keys() <= {"error", "details", "code"}


def test_the_documentation_page_is_served(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert 'href="openapi.json"' in page.text
    assert "/messages/{session_id}" in page.text
