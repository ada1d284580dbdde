"""What people see in a browser: /docs, made from our OpenAPI. No script, nothing from elsewhere.

FastAPI's own page loads its program from a stranger's server: it would be blank without internet, and it would have to
be trusted with the reader's token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from typing import Any

from starlette.types import Message, Send

from relay.server.http import Headers

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #2a7de1; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 2rem 1rem 6rem; }
h1 { margin-bottom: 0 } h2 { margin: 2.5rem 0 .5rem } p { margin: .5rem 0 }
code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { background: var(--soft); border-radius: 6px; padding: .7rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere }
details { border: 1px solid var(--line); border-radius: 8px; margin: .6rem 0; padding: 0 1rem }
summary { cursor: pointer; padding: .6rem 0 }
summary b { display: inline-block; min-width: 4.2rem; color: var(--mark) }
summary :is(span, code) { display: inline-block; margin-right: .4rem }
summary span { opacity: .75 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem }
td:first-child { white-space: nowrap; width: 1% }
td { overflow-wrap: anywhere }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line) }
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest())

HEADERS: Headers = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'sha256-%b'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        % _STYLE_HASH,
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""What the browser is told of a page of ours: it may do next to nothing, and nobody may frame it."""


def with_page_headers(send: Send) -> Send:
    """Add HEADERS to whatever is answered."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            extra = [(name, value) for name, value in HEADERS if name not in names]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_headers


def docs_page(openapi: dict[str, Any]) -> str:
    """Every endpoint, with what it takes, what it answers and a command to try it."""
    info = openapi["info"]
    sections = []
    for tag in openapi["tags"]:
        operations = [
            _operation(method, path, operation)
            for path, methods in openapi["paths"].items()
            for method, operation in methods.items()
            if tag["name"] in operation["tags"]
        ]
        sections.append(
            f"<h2>{escape(tag['name'].title())}</h2><p>{escape(tag['description'])}</p>{''.join(operations)}"
        )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        f"{_paragraphs(info['description'])}"
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(sections)}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"<span>{escape(operation['summary'])}</span></summary>"
        f"{_paragraphs(operation['description'])}<pre>{escape(_command(method, path, operation))}</pre>"
        f"{_parameters(operation.get('parameters', []))}{_responses(operation['responses'])}</details>"
    )


def _command(method: str, path: str, operation: dict[str, Any]) -> str:
    """A line for a terminal that does it."""
    verb = "" if method in ("get", "post") else f" -X {method.upper()}"
    needs_token = {} not in operation.get("security", [{}])
    command = f"curl -s{verb} http://127.0.0.1:8000{path.replace('{session_id}', 'abc')}"
    if needs_token:
        command += ' -H "Authorization: Bearer $RELAY_TOKEN"'
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    if body is not None:
        command += f" -H 'Content-Type: application/json' \\\n  -d '{json.dumps(body)}'"
    return command


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = [
        f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(parameter['description'])} "
        f"{escape(_bounds(parameter['schema']))}"
        for parameter in parameters
    ]
    return f"<table><tr><th>parameter<th>{''.join(rows)}</table>" if rows else ""


def _bounds(schema: dict[str, Any]) -> str:
    words = {"minimum": "from", "maximum": "to", "default": "default"}
    return ", ".join(f"{word} {json.dumps(schema[key])}" for key, word in words.items() if key in schema)


def _responses(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in sorted(responses.items()):
        content: dict[str, Any] = next(iter(response.get("content", {}).values()), {})
        example = content.get("example")
        shown = f"<pre>{escape(_pretty(example))}</pre>" if isinstance(example, dict | list) else ""
        rows.append(f"<tr><td><code>{status}</code><td>{escape(response['description'])}{shown}")
    return f"<table><tr><th>status<th>{''.join(rows)}</table>"


def _pretty(example: Any) -> str:
    return json.dumps(example, indent=1, ensure_ascii=False)


def _paragraphs(text: str) -> str:
    """Of Markdown what we use: paragraphs, a heading of the third level, code."""
    html = []
    for part in text.split("\n\n"):
        heading, words = part.split("\n", 1) if part.startswith("### ") else ("", part)
        html.append(f"<h2>{_inline(heading[4:])}</h2>" if heading else "")
        html.append(f"<p>{_inline(words)}</p>")
    return "".join(html)


def _inline(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
