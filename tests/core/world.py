"""A relay with a clock and ids of the test's own, and a store whose every call can be held up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, TypeVar

from relay.core.hub import Hub
from relay.core.observer import Observer, WakeCause
from relay.core.relay import Relay
from relay.store.base import Entry, LogPage
from relay.store.memory import MemoryStore
from relay.wire import NewPrompt, NewResponse
from tests.factories import GENEROUS, some_settings

T = TypeVar("T")


class SlowStore(MemoryStore):
    """A store that takes its time: other tasks run between a call and its answer, as with a real one."""

    async def pending(self, session_id: str) -> Sequence[Entry]:
        prompts = await super().pending(session_id)
        await asyncio.sleep(0)
        return prompts

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        page = await super().read(session_id, after, limit=limit, max_bytes=max_bytes)
        await asyncio.sleep(0)
        return page


class Causes(Observer):
    """Remembers why polls woke."""

    def __init__(self) -> None:
        self.causes: list[WakeCause] = []

    def poll_woken(self, cause: WakeCause) -> None:
        self.causes.append(cause)


def new_response(
    client_msg_id: str, text: str, assistant_msg_id: str | None = None, session_id: str = "s1"
) -> NewResponse:
    return NewResponse(session_id=session_id, assistant_msg_id=assistant_msg_id, client_msg_id=client_msg_id, text=text)


async def done(result: T | Coroutine[Any, Any, T]) -> T:
    """The result, whether it was there at once or had to be waited for."""
    return await result if isinstance(result, Coroutine) else result


class World:
    """A relay and everything it was given."""

    def __init__(self, store: MemoryStore, settings: dict[str, Any]) -> None:
        self.now_ms = 1_000_000
        self.observer = Causes()
        self.hub = Hub(some_settings(**settings), self.observer)
        ids = count(1)
        self.store = store
        self.relay = Relay(
            store,
            self.hub,
            some_settings(**settings),
            self.observer,
            now_ms=lambda: self.now_ms,
            new_id=lambda: f"id-{next(ids)}",
        )

    async def ask(self, prompt: str = "Hello", session_id: str = "s1") -> str:
        return await done(self.relay.submit_prompt(NewPrompt(session_id=session_id, prompt=prompt)))

    async def answer(self, client_msg_id: str, text: str, session_id: str = "s1") -> None:
        await done(self.relay.post_response(new_response(client_msg_id, text, session_id=session_id)))

    def never(self, tell: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def poll(self, seconds: float = 30) -> list[str]:
        entries = await self.relay.wait_pending("s1", seconds, self.never)
        return [json.loads(entry.data)["client_msg_id"] for entry in entries]


async def make_world(store_class: type[MemoryStore] = MemoryStore, **settings: Any) -> World:
    world = World(store_class(GENEROUS), settings)
    await world.store.open(world.hub)
    return world


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
