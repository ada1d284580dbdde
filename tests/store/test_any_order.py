"""Any order of calls leaves each store as the model says, and its log dense and announced."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from relay.errors import PromptNotFound, SessionNotFound
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.machine import QUICK, AnyOrder
from tests.store.backends import BACKENDS, Backend

T = TypeVar("T")


class StoreMachine(AnyOrder):
    """Plays against a store directly."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        self.listening = Listening()
        self.open()

    def open(self) -> None:
        opened = self.backend.open(Path(self.folder.name), self.listening, GENEROUS)
        self.store = self.run(self.stack.enter_async_context(opened))

    @rule()
    def restart(self) -> None:
        if self.backend.survives:
            self.run(self.stack.aclose())
            self.open()

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()
        self.folder.cleanup()

    def run(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(call)

    def add_prompt(self, session_id: str, client_msg_id: str, text: str) -> str:
        return self.run(self.store.add_prompt(a_prompt(client_msg_id, session_id=session_id, prompt=text))).value

    def add_response(self, session_id: str, client_msg_id: str, assistant_msg_id: str, text: str) -> str:
        response = a_response(assistant_msg_id, to=client_msg_id, session_id=session_id, text=text)
        try:
            return self.run(self.store.add_response(response)).value
        except PromptNotFound:
            return "no prompt"
        except SessionNotFound:
            return "no session"

    def delete(self, session_id: str) -> bool:
        try:
            self.run(self.store.delete_session(session_id))
        except SessionNotFound:
            return False
        self.listening.heard = [heard for heard in self.listening.heard if heard[0] != session_id]
        return True

    def pending(self, session_id: str) -> list[str] | None:
        try:
            entries = self.run(self.store.pending(session_id))
        except SessionNotFound:
            return None
        return [json.loads(entry.data)["client_msg_id"] for entry in entries]

    def history(self, session_id: str, limit: int, offset: int) -> tuple[int, list[tuple[str, str]]] | None:
        try:
            page = self.run(self.store.history(session_id, limit=limit, offset=offset, since=None))
        except SessionNotFound:
            return None
        named = [(entry.kind.value, json.loads(entry.data)) for entry in page.entries]
        return page.total, [(kind, data.get("assistant_msg_id", data["client_msg_id"])) for kind, data in named]

    @invariant()
    def the_log_is_dense_and_every_entry_was_announced_once(self) -> None:
        for session_id, session in self.model.sessions.items():
            seqs = list(range(1, len(session.history) + 1))
            page = self.run(self.store.read(session_id, 0, limit=1000, max_bytes=10**9))
            assert [entry.seq for entry in page.entries] == seqs
            assert [heard for heard in self.listening.heard if heard[0] == session_id] == [
                (session_id, page.epoch, seq) for seq in seqs
            ]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_any_order_of_calls_leaves_the_store_as_the_model_says(backend: Backend) -> None:
    run_state_machine_as_test(lambda: StoreMachine(backend), settings=QUICK)  # type: ignore[arg-type]
