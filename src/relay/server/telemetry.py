"""What the server says about itself: log lines and metrics, each named here and nowhere else.

A log line has ids and sizes, never a prompt, an answer, metadata or a token. `docs/observability.md` is generated
from the two tables below.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from datetime import datetime, timezone
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from relay.config import LogFormat, Settings
from relay.core.observer import Observer, WakeCause
from relay.errors import RelayError, StoreUnavailable
from relay.server.lines import LineWriter
from relay.wire import encode

METRICS_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

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

STORE_FAILURE_SECONDS = 1.0

CLOSE_CODES = {1000, 1001, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 4008, 4401, 4404}
"""Close codes with a series of their own; a client may send any of thousands."""


def _make_logger(settings: Settings, writer: LineWriter) -> structlog.typing.FilteringBoundLogger:
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        writer,
        processors=[
            structlog.processors.add_log_level,
            _timestamp,
            structlog.processors.format_exc_info,
            _console_line if uses_console(settings) else _json_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level.value),
        cache_logger_on_first_use=True,
    )
    return logger


def uses_console(settings: Settings) -> bool:
    """Whether lines are for a person to read."""
    if settings.log_format is LogFormat.AUTO:
        return sys.stderr.isatty()
    return settings.log_format is LogFormat.CONSOLE


class Telemetry(Observer):
    """Logs and counts what the core reports and what the server sees."""

    def __init__(self, settings: Settings) -> None:
        self._writer = LineWriter()
        logger = _make_logger(settings, self._writer)
        self._store_failure_due = 0.0
        self._log = {name: getattr(logger, level) for name, (level, _) in EVENTS.items()}
        self._clock = Clock()
        self._quick: dict[str, str] = {}
        """The level of each event that is logged, if lines are JSON."""
        if not uses_console(settings):
            least = LEVELS.index(settings.log_level.value)
            self._quick = {name: level for name, (level, _) in EVENTS.items() if LEVELS.index(level) >= least}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._prompts = counter("relay_prompts_total", "Prompts kept.")
        self._responses = counter("relay_responses_total", "Responses kept.")
        duplicates = counter("relay_duplicates_total", "Messages that had been kept already.", "kind")
        self._duplicate_prompts = duplicates.labels("prompt")
        self._duplicate_responses = duplicates.labels("response")
        self._connections = counter("relay_connections_total", "WebSocket clients that connected.")
        self._disconnects = counter("relay_disconnects_total", "WebSocket clients that left, by close code.", "code")
        wakeups = counter("relay_poll_wakeups_total", "Waiting polls that stopped waiting, by cause.", "cause")
        self._wakeups = {cause: wakeups.labels(cause.value) for cause in WakeCause}
        self._overflows = counter("relay_queue_overflows_total", "Clients that fell behind their queue.")
        self._collected = counter("relay_sessions_collected_total", "Idle sessions removed.")
        self._errors = counter("relay_errors_total", "Requests refused, by code.", "code")
        self._fan_out = Histogram(
            "relay_fan_out_seconds",
            "Time to queue one answer for every live client of its session.",
            buckets=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1),
            registry=self._registry,
        )
        self._loop_lag = Gauge(
            "relay_loop_lag_seconds", "How late the event loop was at its last look.", registry=self._registry
        )
        self.gauge("relay_log_lines_dropped", "Log lines that nobody took.", lambda: self._writer.dropped)

    def log(self, event: str, **fields: Any) -> None:
        """Log one of EVENTS, at its level."""
        if event in self._quick and "exc_info" not in fields:
            # structlog would take 25 µs for a line, more than all else that a request needs.
            head = {"time": self._clock.text(), "level": self._quick[event], "event": event}
            self._writer.msg(encode(head | fields))
        else:
            self._log[event](event, **fields)

    def flush(self) -> None:
        """Wait a moment for the log to be written."""
        self._writer.flush()

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a value that is kept elsewhere."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def metric_names(self) -> list[tuple[str, str, str]]:
        """Name, type and meaning of each of our metrics."""
        return [
            (metric.name + ("_total" if metric.type == "counter" else ""), metric.type, metric.documentation)
            for metric in self._registry.collect()
            if metric.name.startswith("relay_")
        ]

    def loop_lagged(self, seconds: float) -> None:
        """The event loop ran a timer so late."""
        self._loop_lag.set(seconds)

    def request_refused(self, error: RelayError) -> None:
        """A request was answered with an error."""
        self._errors.labels(error.code.value).inc()
        self.log("request_refused", status=error.status, code=error.code.value)
        if isinstance(error, StoreUnavailable):
            self.store_failed(error)

    def store_failed(self, error: StoreUnavailable) -> None:
        now = time.monotonic()
        if now >= self._store_failure_due:  # an outage makes thousands of them
            self._store_failure_due = now + STORE_FAILURE_SECONDS
            self.log("store_unavailable", why=str(error.__cause__ or error))

    def internal_error(self, error: BaseException) -> None:
        """A request failed for a reason we did not foresee."""
        self._errors.labels("internal").inc()
        self.log("internal_error", exc_info=error)

    def prompt_stored(self, session_id: str, client_msg_id: str, size: int, *, duplicate: bool) -> None:
        (self._duplicate_prompts if duplicate else self._prompts).inc()
        self.log("prompt_stored", session_id=session_id, client_msg_id=client_msg_id, bytes=size, duplicate=duplicate)

    def prompts_fetched(self, session_id: str, count: int) -> None:
        self.log("prompt_fetched", session_id=session_id, count=count)

    def response_posted(
        self, session_id: str, assistant_msg_id: str, client_msg_id: str, size: int, *, duplicate: bool
    ) -> None:
        (self._duplicate_responses if duplicate else self._responses).inc()
        self.log(
            "response_posted",
            session_id=session_id,
            assistant_msg_id=assistant_msg_id,
            client_msg_id=client_msg_id,
            bytes=size,
            duplicate=duplicate,
        )

    def client_connected(self, session_id: str) -> None:
        self._connections.inc()
        self.log("client_connected", session_id=session_id)

    def client_disconnected(self, session_id: str, close_code: int) -> None:
        self._disconnects.labels(close_code if close_code in CLOSE_CODES else "other").inc()
        self.log("client_disconnected", session_id=session_id, close_code=close_code)

    def poll_woken(self, cause: WakeCause) -> None:
        self._wakeups[cause].inc()

    def fanned_out(self, seconds: float) -> None:
        self._fan_out.observe(seconds)

    def queue_overflowed(self, session_id: str) -> None:
        self._overflows.inc()
        self.log("queue_overflowed", session_id=session_id)

    def announcements_lost(self) -> None:
        self.log("announcements_lost")

    def session_deleted(self, session_id: str) -> None:
        self.log("session_deleted", session_id=session_id)

    def sessions_collected(self, count: int) -> None:
        self._collected.inc(count)
        self.log("sessions_collected", count=count)


def bridge_uvicorn(telemetry: Telemetry) -> None:
    """Let uvicorn's own warnings and errors come out as our log lines, and its chatter not at all."""

    class Bridge(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            telemetry.log(
                "uvicorn", severity=record.levelname.lower(), message=record.getMessage(), exc_info=record.exc_info
            )

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


class Clock:
    """The time as log lines have it; the text is made once for each millisecond."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._text = ""

    def text(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if now_ms != self._now_ms:
            self._now_ms = now_ms
            now = datetime.fromtimestamp(now_ms / 1000, timezone.utc)
            self._text = now.isoformat(timespec="milliseconds")
        return self._text


def _timestamp(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["time"] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return event


def _json_line(_: Any, __: str, event: MutableMapping[str, Any]) -> bytes:
    line = encode({"time": event.pop("time"), "level": event.pop("level"), "event": event.pop("event"), **event})
    return _printable(line.decode()).encode()


# With quotation marks, so that a caller's text cannot pass for another field, and what cannot be seen is escaped.
_render_console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="time", repr_native_str=True)


def _console_line(logger: Any, name: str, event: MutableMapping[str, Any]) -> bytes:
    if trace := event.get("exception"):
        # Set in: no part of it, whatever a caller has put there, can pass for a line of the log.
        event["exception"] = "\n".join("    " + _printable(line) for line in trace.split("\n"))
    return str(_render_console(logger, name, event)).encode()


def _printable(text: str) -> str:
    """The same with escapes for what cannot be seen, or would break or turn the line: U+2028, bidi controls, …"""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
