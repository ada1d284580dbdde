"""What the server says about itself: a line in the log (`logs.py`) and a metric for each thing worth one.

Every metric is named here and nowhere else; `docs/observability.md` is generated from this class.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from relay.config import Settings
from relay.core.observer import Observer, WakeCause
from relay.errors import RelayError, StoreUnavailable
from relay.server.logs import Log
from relay.store.base import DUPLICATE, KEPT, Outcome

METRICS_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

STORE_FAILURE_SECONDS = 1.0

CLOSE_CODES = {1000, 1001, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 4008, 4401, 4404}
"""Close codes with a series of their own; a client may send any of thousands."""


class Tally(Collector):
    """A counter for what happens with every message: without the lock that only threads would need."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self.count = 0

    def collect(self) -> Iterable[Metric]:
        """What Prometheus is told."""
        yield CounterMetricFamily(self._name, self._text, self.count)


class Tallies(Collector):
    """The same, with a series for each value of a label."""

    def __init__(self, name: str, text: str, label: str, values: Iterable[str]) -> None:
        self._name = name
        self._text = text
        self._label = label
        self.counts = dict.fromkeys(values, 0)

    def collect(self) -> Iterable[Metric]:
        """What Prometheus is told."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for value, count in self.counts.items():
            family.add_metric([value], count)
        yield family


class Spread(Collector):
    """A histogram for what happens with every answer, without the lock too."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """What Prometheus is told."""
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class Telemetry(Observer):
    """Logs and counts what the core reports and what the server sees."""

    def __init__(self, settings: Settings) -> None:
        self.lines = Log(settings)
        self.log = self.lines.write
        self._store_failure_due = 0.0
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._prompts = self._tally("relay_prompts_total", "Prompts kept.")
        self._responses = self._tally("relay_responses_total", "Responses kept.")
        duplicates = counter("relay_duplicates_total", "Messages that had been kept already.", "kind")
        self._duplicate_prompts = duplicates.labels("prompt")
        self._duplicate_responses = duplicates.labels("response")
        self._connections = counter("relay_connections_total", "WebSocket clients that connected.")
        self._disconnects = counter("relay_disconnects_total", "WebSocket clients that left, by close code.", "code")
        causes = [cause.value for cause in WakeCause]
        self._wakeups = Tallies(
            "relay_poll_wakeups_total", "Waiting polls that stopped waiting, by cause.", "cause", causes
        )
        self._registry.register(self._wakeups)
        self._overflows = counter("relay_queue_overflows_total", "Clients that fell behind their queue.")
        self._collected = counter("relay_sessions_collected_total", "Idle sessions removed.")
        self._errors = counter("relay_errors_total", "Requests refused, by code.", "code")
        self._fan_out = Spread(
            "relay_fan_out_seconds",
            "Time until an answer was given to every live client of its session.",
            (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0),
        )
        self._registry.register(self._fan_out)
        self._loop_lag = Gauge(
            "relay_loop_lag_seconds", "How late the event loop was at its last look.", registry=self._registry
        )
        self.gauge("relay_log_lines_dropped", "Log lines that nobody took.", lambda: self.lines.dropped)

    def flush(self) -> None:
        """Wait a moment for the log to be written."""
        self.lines.flush()

    def _tally(self, name: str, text: str) -> Tally:
        tally = Tally(name, text)
        self._registry.register(tally)
        return tally

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
        self.log("internal_error", error=error)

    def prompt_stored(self, session_id: str, client_msg_id: str, size: int, outcome: Outcome) -> None:
        if outcome is KEPT:
            self._prompts.count += 1
        else:
            self._duplicate_prompts.inc()
        self.lines.prompt_stored(session_id, client_msg_id, size, outcome is DUPLICATE)

    def prompts_fetched(self, session_id: str, count: int) -> None:
        self.lines.prompt_fetched(session_id, count)

    def response_posted(
        self, session_id: str, assistant_msg_id: str, client_msg_id: str, size: int, outcome: Outcome
    ) -> None:
        if outcome is KEPT:
            self._responses.count += 1
        else:
            self._duplicate_responses.inc()
        self.lines.response_posted(session_id, assistant_msg_id, client_msg_id, size, outcome is DUPLICATE)

    def client_connected(self, session_id: str) -> None:
        self._connections.inc()
        self.log("client_connected", session_id=session_id)

    def client_disconnected(self, session_id: str, close_code: int) -> None:
        self._disconnects.labels(close_code if close_code in CLOSE_CODES else "other").inc()
        self.log("client_disconnected", session_id=session_id, close_code=close_code)

    def poll_woken(self, cause: WakeCause) -> None:
        self._wakeups.counts[cause] += 1

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
