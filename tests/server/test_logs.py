"""server/logs.py and server/lines.py: one event that cannot be written takes no other with it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from relay.config import LogFormat
from relay.server.lines import Event, LineWriter
from relay.server.logs import Log
from tests.factories import some_settings


@pytest.mark.parametrize("format_", [LogFormat.JSON, LogFormat.CONSOLE])
def test_a_name_that_is_not_utf_8_is_logged_with_escapes(
    format_: LogFormat, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = Log(some_settings(log_format=format_))
    log.prompt_stored("s1", "c1", 1, False)
    log.write("unknown_setting", name="RELAY_\udcff")  # as os.environ has it
    log.prompt_fetched("s1", 1)
    log.flush()
    lines = capfdbinary.readouterr().err.splitlines()
    assert len(lines) == 3
    assert rb"RELAY_\udcff" in lines[1]
    if format_ is LogFormat.JSON:
        assert [json.loads(line)["event"] for line in lines] == ["prompt_stored", "unknown_setting", "prompt_fetched"]
    assert log.dropped == 0


def test_an_event_that_cannot_be_rendered_is_dropped_alone(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def render(events: Sequence[Event]) -> bytes:
        return b"".join(b"%d\n" % event["number"] for event in events if isinstance(event, dict))

    writer = LineWriter(render)
    for number in (1, "two", 3):
        writer.put({"number": number})
    writer.put({"no": "number"})
    writer.flush()
    writer.put({"number": 4})
    writer.flush()
    assert capfdbinary.readouterr().err == b"1\n3\n4\n"
    assert writer.dropped == 2
