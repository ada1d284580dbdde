"""Hear of SIGTERM at once. The ASGI server tells the application only after the last request has ended, which would
be too late: waiting polls must be sent home so that it can end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def call_on_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the event loop when the process is asked to stop, then let the server's own handler run."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals; an embedded app is stopped by whoever embeds it
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in _SIGNALS:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is heard:
                signal.signal(number, handler)
