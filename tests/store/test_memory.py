"""The memory store's own promise: its bound in bytes holds in real memory."""

from __future__ import annotations

import gc
import tracemalloc

import msgspec
import pytest

from relay.errors import StoreFull
from relay.store.memory import MemoryStore
from tests.factories import GENEROUS, Listening, a_prompt, a_response


async def fresh(**limits: object) -> MemoryStore:
    store = MemoryStore(msgspec.structs.replace(GENEROUS, **limits))
    await store.open(Listening())
    return store


async def test_a_full_store_keeps_nothing_more_and_changes_nothing() -> None:
    store = await fresh(store_max_bytes=1024**2)
    await store.add_prompt(a_prompt("p1"))
    big = "x" * 100_000
    kept = 0
    with pytest.raises(StoreFull):
        for kept in range(1, 20):
            await store.add_prompt(a_prompt(f"p{kept + 1}", prompt=big))
    with pytest.raises(StoreFull):
        await store.add_response(a_response("a1", to="p1", text="x" * 1_000_000))
    with pytest.raises(StoreFull):
        await store.add_prompt(a_prompt("p1", session_id="s2", prompt=big * 9))
    assert len(await store.pending("s1")) == kept
    assert await store.head("s2") is None
    await store.delete_session("s1")
    await store.add_prompt(a_prompt("p1", prompt=big))


@pytest.mark.parametrize(
    ("sessions", "messages", "text_bytes"), [(5_000, 2, 10), (10, 5_000, 10), (10, 400, 10_000), (1, 20_000, 100)]
)
async def test_the_count_of_bytes_is_no_less_than_what_is_used_and_returns_to_zero(
    sessions: int, messages: int, text_bytes: int
) -> None:
    gc.collect()
    tracemalloc.start()
    store = await fresh(history_max_messages=10_000, max_pending_per_session=10_000)
    before = tracemalloc.get_traced_memory()[0]
    for s in range(sessions):
        for m in range(messages // 2):
            await store.add_prompt(a_prompt(f"prompt-{m}", session_id=f"session-{s}", prompt="x" * text_bytes))
            if m % 2:
                response = a_response(f"answer-{m}", to=f"prompt-{m}", session_id=f"session-{s}", text="x" * text_bytes)
                await store.add_response(response)
            store._listener.heard.clear()  # type: ignore[attr-defined]
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used <= store._bytes <= 3 * used
    for s in range(sessions):
        await store.delete_session(f"session-{s}")
    assert store._bytes == 0
