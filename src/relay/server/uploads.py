"""Bodies that are still arriving, under any ASGI server: one that takes too long is cut by the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from relay.errors import RequestTimeout


class Uploads:
    """The tasks that wait for a body. No timer is started for a body, which most often is there already."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._cut: set[asyncio.Task[Any]] = set()

    async def read(self, reading: Awaitable[bytes]) -> bytes:
        """The result of `reading`. Raises RequestTimeout if that takes too long."""
        task = asyncio.current_task()
        assert task is not None
        self._since[task] = task.get_loop().time()
        try:
            return await reading
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            getattr(task, "uncancel", int)()  # it was not meant for the task as a whole; Python 3.10 keeps no count
            raise RequestTimeout(f"the body takes longer than {self._max_seconds:g} s") from None
        finally:
            del self._since[task]
            self._cut.discard(task)

    def cut(self, now: float) -> None:
        """End those that have taken too long."""
        late = [task for task, since in self._since.items() if now - since > self._max_seconds]
        for task in late:
            if task not in self._cut:
                self._cut.add(task)
                task.cancel()
