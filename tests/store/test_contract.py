"""What store/base.py promises, sentence by sentence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from relay.errors import PromptNotFound, SessionNotFound, TooManyPending, TooManySessions
from relay.models import MessageType
from relay.store.base import Entry, LogPage, Outcome, Position, Store
from tests.factories import Listening, a_prompt, a_response
from tests.store.conftest import LimitedStore


async def read(store: Store, after: int = 0, *, limit: int = 100, max_bytes: int = 10**9) -> LogPage:
    return await store.read("s1", after, limit=limit, max_bytes=max_bytes)


def seqs(entries: object) -> list[int]:
    return [entry.seq for entry in entries]  # type: ignore[attr-defined]


def ids(entries: object) -> list[str]:
    return [json.loads(entry.data)["client_msg_id"] for entry in entries]  # type: ignore[attr-defined]


async def ask(store: Store, *message_ids: str) -> None:
    for message_id in message_ids:
        assert await store.add_prompt(a_prompt(message_id)) is Outcome.KEPT


# Keeping


async def test_a_prompt_is_kept_made_pending_and_announced(store: Store, listening: Listening) -> None:
    new = a_prompt("p1", ts=7)
    assert await store.add_prompt(new) is Outcome.KEPT
    head = await store.head("s1")
    assert head is not None
    [entry] = await store.pending("s1")
    assert entry == Entry(1, MessageType.PROMPT, 7, new.data)
    assert (await read(store)).entries == [entry]
    assert listening.heard == [("s1", head.epoch, 1)]


async def test_a_repeated_prompt_changes_and_announces_nothing(store: Store, listening: Listening) -> None:
    await ask(store, "p1")
    assert await store.add_prompt(a_prompt("p1", prompt="other", ts=9, now_ms=99)) is Outcome.DUPLICATE
    await store.add_response(a_response("a1", to="p1"))
    assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
    assert await store.pending("s1") == []
    assert seqs((await read(store)).entries) == [1, 2]
    assert len(listening.heard) == 2


async def test_a_response_is_kept_ends_the_wait_and_is_announced(store: Store, listening: Listening) -> None:
    await ask(store, "p1", "p2")
    assert await store.add_response(a_response("a1", to="p1")) is Outcome.KEPT
    assert ids(await store.pending("s1")) == ["p2"]
    assert [entry.kind for entry in (await read(store)).entries] == [
        MessageType.PROMPT,
        MessageType.PROMPT,
        MessageType.ASSISTANT,
    ]
    assert [seq for _, _, seq in listening.heard] == [1, 2, 3]


async def test_a_repeated_response_changes_and_announces_nothing(store: Store, listening: Listening) -> None:
    await ask(store, "p1", "p2")
    await store.add_response(a_response("a1", to="p1"))
    assert await store.add_response(a_response("a1", to="p1", ts=99)) is Outcome.DUPLICATE
    assert await store.add_response(a_response("a1", to="p1", text="other")) is Outcome.CONFLICT
    assert await store.add_response(a_response("a1", to="p2")) is Outcome.CONFLICT
    assert await store.add_response(a_response("a1", to="never posted")) is Outcome.CONFLICT
    assert ids(await store.pending("s1")) == ["p2"]
    assert seqs((await read(store)).entries) == [1, 2, 3]
    assert len(listening.heard) == 3


async def test_a_further_response_to_an_answered_prompt_is_kept(store: Store) -> None:
    await ask(store, "p1")
    assert await store.add_response(a_response("a1")) is Outcome.KEPT
    assert await store.add_response(a_response("a2")) is Outcome.KEPT
    assert await store.pending("s1") == []
    assert seqs((await read(store)).entries) == [1, 2, 3]


async def test_a_response_needs_its_session_and_its_prompt(store: Store, listening: Listening) -> None:
    with pytest.raises(SessionNotFound):
        await store.add_response(a_response())
    assert await store.head("s1") is None
    await ask(store, "p1")
    with pytest.raises(PromptNotFound):
        await store.add_response(a_response(to="p2"))
    assert seqs((await read(store)).entries) == [1]
    assert len(listening.heard) == 1


async def test_a_prompt_and_a_response_may_have_the_same_id(store: Store) -> None:
    await ask(store, "same")
    assert await store.add_response(a_response("same", to="same")) is Outcome.KEPT


async def test_ids_are_unique_per_session_only(store: Store) -> None:
    for session_id in ("s1", "s2"):
        assert await store.add_prompt(a_prompt("p1", session_id=session_id)) is Outcome.KEPT
        assert await store.add_response(a_response("a1", session_id=session_id)) is Outcome.KEPT


async def test_pending_prompts_come_oldest_first_whatever_their_ts(store: Store) -> None:
    for message_id, ts in (("p1", 30), ("p2", 10), ("p3", 20)):
        await store.add_prompt(a_prompt(message_id, ts=ts))
    assert ids(await store.pending("s1")) == ["p1", "p2", "p3"]


@pytest.mark.parametrize("call", ["pending", "read", "history", "session", "delete_session"])
async def test_an_unknown_session_is_not_found(store: Store, call: str) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "pending": lambda: store.pending("s1"),
        "read": lambda: read(store),
        "history": lambda: store.history("s1", limit=1, offset=0, since=None),
        "session": lambda: store.session("s1"),
        "delete_session": lambda: store.delete_session("s1"),
    }
    with pytest.raises(SessionNotFound):
        await calls[call]()
    assert await store.head("s1") is None


# The log


async def test_seq_is_dense_and_the_epoch_stays(store: Store) -> None:
    epochs = set()
    for n in range(1, 6):
        await ask(store, f"p{n}")
        head = await store.head("s1")
        assert head is not None
        assert head.seq == n
        epochs.add(head.epoch)
    assert len(epochs) == 1
    assert (await read(store)).epoch in epochs


async def test_a_log_that_begins_anew_has_a_new_epoch(store: Store) -> None:
    await ask(store, "p1")
    first = await store.head("s1")
    await store.delete_session("s1")
    await ask(store, "p1")
    second = await store.head("s1")
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq) == (1, 1)
    assert first.epoch != second.epoch


async def test_a_log_may_be_given_a_new_epoch_and_keeps_its_entries(store: Store) -> None:
    await ask(store, "p1", "p2")
    before = await read(store)
    await store.renew_epoch("s1", "another")
    assert await read(store) == before
    await store.renew_epoch("s1", before.epoch)
    after = await read(store)
    assert after.epoch != before.epoch
    assert after.entries == before.entries
    await ask(store, "p3")
    assert (await store.head("s1")) == Position(after.epoch, 3)
    with pytest.raises(SessionNotFound):
        await store.renew_epoch("unknown", "e")


async def test_the_log_is_read_after_a_position_in_pages(store: Store) -> None:
    await ask(store, *(f"p{n}" for n in range(1, 11)))
    assert seqs((await read(store, 0, limit=4)).entries) == [1, 2, 3, 4]
    assert seqs((await read(store, 8, limit=4)).entries) == [9, 10]
    assert seqs((await read(store, 10)).entries) == []
    assert seqs((await read(store, 11)).entries) == []
    assert (await read(store, 0)).floor == 0


async def test_a_page_of_the_log_is_bounded_in_bytes_but_never_empty(store: Store) -> None:
    await ask(store, *(f"p{n}" for n in range(1, 4)))
    size = len(a_prompt("p1").data)
    assert seqs((await read(store, 0, max_bytes=1)).entries) == [1]
    assert seqs((await read(store, 0, max_bytes=2 * size)).entries) == [1, 2]


async def test_what_the_log_no_longer_holds_is_told_by_the_floor(limited: LimitedStore) -> None:
    async with limited(history_max_messages=3) as store:
        await ask(store, *(f"p{n}" for n in range(1, 6)))
        page = await read(store, 0)
        assert (page.floor, seqs(page.entries)) == (2, [3, 4, 5])
        assert seqs((await read(store, 3)).entries) == [4, 5]
        head = await store.head("s1")
        assert head is not None
        assert head.seq == 5


async def test_the_log_is_trimmed_by_bytes_too(limited: LimitedStore) -> None:
    size = len(a_prompt("p1").data)
    async with limited(history_max_bytes=3 * size) as store:
        await ask(store, *(f"p{n}" for n in range(1, 6)))
        assert (await read(store, 0)).floor == 2


async def test_trimming_never_drops_a_pending_prompt_nor_forgets_an_id(limited: LimitedStore) -> None:
    async with limited(history_max_messages=2) as store:
        await ask(store, *(f"p{n}" for n in range(1, 200)))
        assert ids(await store.pending("s1")) == [f"p{n}" for n in range(1, 200)]
        await store.add_response(a_response("a1", to="p1"))
        for n in range(2, 10):
            await store.add_response(a_response(f"a{n}", to="p2"))
        assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
        assert await store.add_response(a_response("a1", to="p1")) is Outcome.DUPLICATE
        assert await store.add_response(a_response("a1", to="p1", text="other")) is Outcome.CONFLICT


# History


async def test_history_is_in_order_of_seq_and_paged(store: Store) -> None:
    await ask(store, "p1", "p2")
    await store.add_response(a_response("a1", ts=0))
    page = await store.history("s1", limit=2, offset=1, since=None)
    assert (page.total, seqs(page.entries)) == (3, [2, 3])
    page = await store.history("s1", limit=2, offset=3, since=None)
    assert (page.total, seqs(page.entries)) == (3, [])
    page = await store.history("s1", limit=2, offset=2**53 - 1, since=None)
    assert (page.total, seqs(page.entries)) == (3, [])


async def test_history_since_is_strict_and_total_counts_what_matches(store: Store) -> None:
    for n, ts in enumerate((10, 20, 20.5, 5, 30), 1):
        await store.add_prompt(a_prompt(f"p{n}", ts=ts))
    page = await store.history("s1", limit=2, offset=1, since=10)
    assert (page.total, seqs(page.entries)) == (3, [3, 5])
    page = await store.history("s1", limit=10, offset=0, since=20)
    assert seqs(page.entries) == [3, 5]
    for since, offset, total in ((20, 2, 2), (20, 99, 2), (99, 0, 0), (99, 9, 0), (-1, 5, 5)):
        page = await store.history("s1", limit=10, offset=offset, since=since)
        assert (page.total, list(page.entries)) == (total, [])


async def test_history_is_what_the_log_holds(limited: LimitedStore) -> None:
    async with limited(history_max_messages=3) as store:
        await ask(store, *(f"p{n}" for n in range(1, 300)))
        page = await store.history("s1", limit=10, offset=1, since=None)
        assert (page.total, seqs(page.entries)) == (3, [298, 299])
        assert (await store.session("s1")).messages == 3


async def test_without_history_there_is_none_but_the_log_has_a_tail(limited: LimitedStore) -> None:
    async with limited(history=False) as store:
        await ask(store, "p1")
        for n in range(1, 400):
            await store.add_response(a_response(f"a{n}"))
        page = await store.history("s1", limit=10, offset=0, since=None)
        assert (page.total, list(page.entries)) == (0, [])
        assert (await read(store, 399)).entries != []
        assert (await read(store, 0)).floor > 0
        assert await store.add_response(a_response("a1")) is Outcome.DUPLICATE


# Sessions


async def test_a_session_tells_its_times_and_counts(store: Store) -> None:
    await store.add_prompt(a_prompt("p1", now_ms=10))
    await store.add_prompt(a_prompt("p2", now_ms=20))
    await store.add_response(a_response("a1", to="p1", now_ms=30))
    record = await store.session("s1")
    assert (record.session_id, record.created_ms, record.active_ms) == ("s1", 10, 30)
    assert (record.messages, record.pending) == (3, 1)


async def test_sessions_are_listed_in_the_order_of_their_creation(store: Store) -> None:
    for n, session_id in enumerate(("b", "a", "c")):
        await store.add_prompt(a_prompt("p1", session_id=session_id, now_ms=n))
    page = await store.sessions(limit=2, offset=1)
    assert (page.total, [record.session_id for record in page.records]) == (3, ["a", "c"])
    page = await store.sessions(limit=2, offset=2**53 - 1)
    assert (page.total, list(page.records)) == (3, [])


async def test_touch_notes_the_last_use_and_passes_over_what_is_older_or_unknown(store: Store) -> None:
    await store.add_prompt(a_prompt(now_ms=10))
    await store.touch({"s1": 50, "unknown": 60})
    assert (await store.session("s1")).active_ms == 50
    await store.touch({"s1": 40})
    assert (await store.session("s1")).active_ms == 50
    assert await store.head("unknown") is None


async def test_a_deleted_session_is_forgotten_and_announced(store: Store, listening: Listening) -> None:
    await ask(store, "p1")
    await store.add_response(a_response("a1"))
    await store.delete_session("s1")
    assert listening.deleted == ["s1"]
    assert await store.head("s1") is None
    assert (await store.sessions(limit=10, offset=0)).total == 0
    assert await store.add_prompt(a_prompt("p1")) is Outcome.KEPT
    assert await store.add_response(a_response("a1", text="other")) is Outcome.KEPT


async def test_idle_sessions_are_collected_unless_kept_or_pending(store: Store, listening: Listening) -> None:
    for session_id, now_ms in (("idle", 10), ("kept", 10), ("pending", 10), ("fresh", 11)):
        await store.add_prompt(a_prompt("p1", session_id=session_id, now_ms=now_ms))
        if session_id != "pending":
            await store.add_response(a_response("a1", session_id=session_id, now_ms=now_ms))
    assert list(await store.collect_idle(10, keep={"kept"})) == ["idle"]
    assert listening.deleted == ["idle"]
    assert (await store.sessions(limit=10, offset=0)).total == 3


# Bounds


async def test_pending_prompts_are_bounded_per_session(limited: LimitedStore) -> None:
    async with limited(max_pending_per_session=2) as store:
        await ask(store, "p1", "p2")
        with pytest.raises(TooManyPending):
            await store.add_prompt(a_prompt("p3"))
        assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
        await store.add_response(a_response("a1", to="p1"))
        await ask(store, "p3")


async def test_sessions_are_bounded(limited: LimitedStore) -> None:
    async with limited(max_sessions=1) as store:
        await ask(store, "p1", "p2")
        with pytest.raises(TooManySessions):
            await store.add_prompt(a_prompt(session_id="s2"))
        assert await store.head("s2") is None
        await store.delete_session("s1")
        await store.add_prompt(a_prompt(session_id="s2"))


async def test_an_open_store_is_healthy(store: Store) -> None:
    await store.check()
