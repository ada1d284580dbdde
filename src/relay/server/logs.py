"""The log: every event by its name, one line for each. JSON for programs, or the same for the eye on a terminal.

A line has ids and sizes, never a prompt, an answer, metadata or a token. What a caller sends cannot break or turn it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import msgspec
import structlog

from relay.config import LogFormat, Settings
from relay.server.lines import Event, LineWriter
from relay.wire import encode, encode_lines

EVENTS = {
    "server_started": ("info", "The server accepts connections; with its address, store and authentication."),
    "server_stopping": ("info", "A signal to stop has come: polls end, sockets are closed."),
    "server_stopped": ("info", "Everything has ended in order."),
    "server_insecure": (
        "warning",
        "RELAY_INSECURE is set: whoever can reach the address can post prompts to the agent and read every session.",
    ),
    "unknown_setting": ("warning", "A RELAY_* variable is set that is not a setting."),
    "prompt_stored": ("info", "A prompt was kept, or had been already (duplicate)."),
    "prompt_fetched": ("info", "An agent was handed pending prompts."),
    "response_posted": ("info", "An answer was kept, or had been already (duplicate)."),
    "client_connected": ("info", "A WebSocket client listens."),
    "client_disconnected": ("info", "A WebSocket client is gone; with the close code."),
    "session_deleted": ("info", "A session was deleted by request."),
    "sessions_collected": ("info", "Idle sessions were removed."),
    "queue_overflowed": ("warning", "A client reads too slowly; it now follows the log at its own pace."),
    "store_unavailable": ("warning", "The store does not answer, or cannot keep anything; said once a second at most."),
    "announcements_lost": ("warning", "The store was out of reach for a moment: every listener reads the log again."),
    "request_refused": ("debug", "A request got an error; with its status and code."),
    "internal_error": ("error", "A bug: something unforeseen was raised; with the traceback."),
    "uvicorn": ("warning", "What the web server itself has to say: a warning or an error."),
}
"""Every event that is logged: its level and what it means."""

LEVELS = ("debug", "info", "warning", "error")


def uses_console(settings: Settings) -> bool:
    """Whether lines are for a person to read."""
    if settings.log_format is LogFormat.AUTO:
        return sys.stderr.isatty()
    return settings.log_format is LogFormat.CONSOLE


class PromptStored(msgspec.Struct, gc=False):
    """The line of that event. What comes with every message has a type of its own: it is made and encoded faster."""

    time: str
    level: str
    event: str
    session_id: str
    client_msg_id: str
    bytes: int
    duplicate: bool


class PromptFetched(msgspec.Struct, gc=False):
    """The line of that event."""

    time: str
    level: str
    event: str
    session_id: str
    count: int


class ResponsePosted(msgspec.Struct, gc=False):
    """The line of that event."""

    time: str
    level: str
    event: str
    session_id: str
    assistant_msg_id: str
    client_msg_id: str
    bytes: int
    duplicate: bool


class Log:
    """Writes events, if their level is high enough."""

    def __init__(self, settings: Settings) -> None:
        self._writer = LineWriter(_console_lines if uses_console(settings) else _json_lines)
        self._clock = Clock()
        least = LEVELS.index(settings.log_level.value)
        self._levels = {name: level for name, (level, _) in EVENTS.items() if LEVELS.index(level) >= least}
        self._prompt_stored = self._levels.get("prompt_stored")
        self._prompt_fetched = self._levels.get("prompt_fetched")
        self._response_posted = self._levels.get("response_posted")

    @property
    def dropped(self) -> int:
        """How many lines nobody took."""
        return self._writer.dropped

    def write(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log one of EVENTS, at its level; with the traceback of an error."""
        level = self._levels.get(event)
        if level is None:
            return
        if error is not None:
            fields["exception"] = "".join(traceback.format_exception(error)).rstrip()
        self._writer.put({"time": self._clock.text(), "level": level, "event": event, **fields})

    def prompt_stored(self, session_id: str, client_msg_id: str, size: int, duplicate: bool) -> None:
        """Log that event."""
        if level := self._prompt_stored:
            time = self._clock.text()
            self._writer.put(PromptStored(time, level, "prompt_stored", session_id, client_msg_id, size, duplicate))

    def prompt_fetched(self, session_id: str, count: int) -> None:
        """Log that event."""
        if level := self._prompt_fetched:
            self._writer.put(PromptFetched(self._clock.text(), level, "prompt_fetched", session_id, count))

    def response_posted(
        self, session_id: str, assistant_msg_id: str, client_msg_id: str, size: int, duplicate: bool
    ) -> None:
        """Log that event."""
        if level := self._response_posted:
            time = self._clock.text()
            self._writer.put(
                ResponsePosted(
                    time, level, "response_posted", session_id, assistant_msg_id, client_msg_id, size, duplicate
                )
            )

    def flush(self) -> None:
        """Wait a moment for all to be written."""
        self._writer.flush()


class Clock:
    """The time as log lines have it; the text is made once for each millisecond."""

    def __init__(self) -> None:
        self._from = self._until = 0.0
        self._text = ""

    def text(self) -> str:
        now = time.time()
        if now < self._from or now >= self._until:
            now_ms = int(now * 1000)
            self._from, self._until = now_ms / 1000, (now_ms + 1) / 1000
            self._text = datetime.fromtimestamp(now_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
        return self._text


def _json_lines(events: Sequence[Event]) -> bytes:
    # Without structlog, which takes longer for a line than all else that a request needs.
    with suppress(UnicodeEncodeError):
        lines = encode_lines(events)
        if lines.isascii() and b"\x7f" not in lines:
            return lines
    return b"".join(map(_json_line, events))


def _json_line(event: Event) -> bytes:
    try:
        line = encode(event).decode()
    except UnicodeEncodeError:  # a lone surrogate: the system has names that are not UTF-8
        line = json.dumps(msgspec.to_builtins(event))
    return (_printable(line) + "\n").encode()


# With quotation marks, so that a caller's text cannot pass for another field, and what cannot be seen is escaped.
_render_console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="time", repr_native_str=True)


def _console_lines(events: Sequence[Event]) -> bytes:
    return b"".join(map(_console_line, events))


def _console_line(line: Event) -> bytes:
    event = line if isinstance(line, dict) else msgspec.structs.asdict(line)
    if trace := event.get("exception"):
        # Set in: no part of it, whatever a caller has put there, can pass for a line of the log.
        event["exception"] = "\n".join("    " + _printable(line) for line in trace.split("\n"))
    return (str(_render_console(None, "", event)) + "\n").encode()


def _printable(text: str) -> str:
    """The same with escapes for what cannot be seen, or would break or turn the line: U+2028, bidi controls, …"""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


# What uvicorn itself writes


def bridge_uvicorn(log: Log) -> None:
    """Let uvicorn's own warnings and errors come out as our log lines, and its chatter not at all."""

    class Bridge(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            log.write("uvicorn", severity=record.levelname.lower(), message=record.getMessage(), error=error)

    root = logging.getLogger("uvicorn")
    root.handlers = [Bridge()]
    root.propagate = False
    root.setLevel(logging.WARNING)


_QUERY_VALUE = re.compile(r"(?<==)[^&\s\"]+")
_NOT_ERRORS = {
    # uvicorn 0.54 sends a refusal of a handshake and then complains that there was none (Kludex/uvicorn#3138).
    "ASGI callable returned without completing handshake.",
    # A client's mistake, closed with 1007 as it should be; with a traceback for each, anyone could fill the log.
    "Invalid UTF-8 sequence received from client.",
}


def tidy_uvicorn() -> None:
    """Keep out of uvicorn's own log what it takes for an error of ours and is none, and every ticket."""
    for name, rule in (("uvicorn.error", _is_error), ("uvicorn.error", _hide_query), ("uvicorn.access", _hide_query)):
        logger = logging.getLogger(name)
        if rule not in logger.filters:
            logger.addFilter(rule)


def _hide_query(record: logging.LogRecord) -> bool:
    # Every value: a name can be written in many ways (tick%65t=), and a token may be put where none belongs.
    if isinstance(record.args, tuple):
        record.args = tuple(_without_values(arg) if isinstance(arg, str) else arg for arg in record.args)
    return True


def _without_values(url: str) -> str:
    path, mark, query = url.partition("?")
    return _printable(path + mark + _QUERY_VALUE.sub("…", query))


def _is_error(record: logging.LogRecord) -> bool:
    # What a lifespan raised comes as the text of its traceback. A second Ctrl+C cancels what is still under way; what
    # keeps us from starting has been said in one sentence.
    last_line = str(record.msg).rstrip().rpartition("\n")[2]
    expected = last_line.endswith("CancelledError") or last_line.startswith("relay.errors.StartupError")
    return record.msg not in _NOT_ERRORS and not expected
