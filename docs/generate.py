"""Writes the pages of docs/ that come from the code (`make docs`); with --check it only tells if they are stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from relay.cli import app as cli
from relay.config import Settings
from relay.environment import env_names
from relay.errors import MissingField, RelayError
from relay.server.app import create_app
from relay.server.logs import EVENTS

HERE = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py from the code: change that, then run `make docs`. -->\n"


def settings_page() -> str:
    """docs/settings.md"""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default if field.default is not PydanticUndefined else ""
        shown = getattr(default, "value", str(default).lower() if isinstance(default, bool) else default)
        rows.append(f"| `{env_names()[name]}` | `{shown}` | {bounds(field.metadata)} | {field.description} |")
    return "\n".join(
        [
            "# Settings",
            NOTE,
            "Each is an environment variable or a line in a file `.env` in the working directory. A flag of",
            "`relay serve` wins over the environment, the environment over `.env`. A value out of bounds, or a name",
            "that is almost a setting, keeps the relay from starting (exit code 3) and is named; any other unknown",
            "`RELAY_*` name is logged.",
            "",
            "| variable | default | bounds | what it does, and why the default |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def bounds(metadata: list[Any]) -> str:
    """The bounds of a field in words."""
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{sign} {getattr(m, key):,}" for m in metadata for key, sign in words.items() if hasattr(m, key)]
    return ", ".join(found)


def errors_page() -> str:
    """docs/errors.md"""
    rows = []
    for error in sorted(subclasses(RelayError), key=lambda error: (error.status, error.code.value)):
        if "code" not in vars(error):
            continue  # a group, or a special case of its parent
        sentence = "Missing required field: …" if error is MissingField else error.error
        meaning = (error.__doc__ or "").split("\n")[0]
        retry = f"{error.retry_after_seconds} s" if error.retry_after_seconds else ""
        rows.append(f"| `{error.code.value}` | {error.status} | {sentence} | {meaning} | {retry} |")
    return "\n".join(
        [
            "# Errors",
            NOTE,
            'Every error, on every path, is JSON of one shape: `{"error": "…", "details": "…", "code": "…"}`.',
            "`code` is for programs and never changes; `error` is for people and may improve; `details`, where it",
            "helps, names the field or the bound and never repeats what was sent. A refused request has changed",
            "nothing. Where trying again can help, the answer has a `Retry-After`.",
            "",
            "| code | status | error | when | Retry-After |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def subclasses(error: type[RelayError]) -> list[type[RelayError]]:
    """The whole tree below."""
    return [found for child in error.__subclasses__() for found in [child, *subclasses(child)]]


def observability_page() -> str:
    """docs/observability.md"""
    telemetry = create_app(Settings.model_construct()).state.telemetry
    return "\n".join(
        [
            "# Logs and metrics",
            NOTE,
            "## Log events",
            "",
            "One line per event on standard error: JSON (`time`, `level`, `event`, then ids and sizes), or the same",
            "for the eye on a terminal. Never the text of a prompt or answer, never metadata.",
            "",
            "| event | level | when |",
            "|---|---|---|",
            *(f"| `{name}` | {level} | {text} |" for name, (level, text) in EVENTS.items()),
            "",
            "## Metrics",
            "",
            "At `GET /metrics`, in Prometheus' text format, beside the usual `process_*`. No label ever holds an id.",
            '`relay_poll_wakeups_total{cause="safety"}` that rises with prompts found means lost announcements.',
            "",
            "| metric | type | meaning |",
            "|---|---|---|",
            *(f"| `{name}` | {kind} | {text} |" for name, kind, text in telemetry.metric_names()),
            "",
        ]
    )


def cli_page() -> str:
    """docs/cli.md"""
    import typer

    command = typer.main.get_command(cli)
    context = typer.Context(command, info_name="relay")
    sections = ["# The relay command", NOTE]
    for name in command.list_commands(context):  # type: ignore[attr-defined]
        verb = command.get_command(context, name)  # type: ignore[attr-defined]
        sections += [f"## relay {name}", "", (verb.help or "").strip(), "", "| option | meaning |", "|---|---|"]
        sections += [
            f"| `{'`, `'.join([*p.opts, *p.secondary_opts])}` | {p.help} Default: {p.show_default}. |"
            for p in verb.params
        ]
        examples = (verb.epilog or "").replace("[bold]", "").replace("[/bold]", "").strip()
        sections += ["", "```text", examples.replace("\n\n", "\n"), "```", ""]
    return "\n".join(sections)


def openapi_file() -> str:
    """docs/openapi.json"""
    return json.dumps(create_app(Settings.model_construct()).openapi(), indent=1, ensure_ascii=False) + "\n"


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "observability.md": observability_page,
    "cli.md": cli_page,
    "openapi.json": openapi_file,
}


def main() -> int:
    """Write the pages, or check them."""
    stale = [name for name, page in PAGES.items() if not (HERE / name).exists() or (HERE / name).read_text() != page()]
    if "--check" in sys.argv:
        if stale:
            print(f"docs/{', docs/'.join(stale)} not in step with the code. Run: make docs", file=sys.stderr)
        return bool(stale)
    for name in stale:
        (HERE / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
