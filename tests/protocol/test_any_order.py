"""Any order of requests leaves the relay as the model says, and each listener with each answer once, in order."""

from __future__ import annotations

import uuid
from contextlib import ExitStack

import httpx2 as httpx
from hypothesis.stateful import invariant, run_state_machine_as_test
from websockets.sync.client import ClientConnection

from tests.machine import QUICKER, AnyOrder
from tests.protocol.talk import Address, next_message


class HttpMachine(AnyOrder):
    """Plays over HTTP, with a listener on each session for as long as the session lives."""

    def __init__(self, at: Address, http: httpx.Client) -> None:
        super().__init__()
        self.http = http
        self.at = at
        self.run = uuid.uuid4().hex[:8]  # sessions of one run are not those of the next
        self.listeners: dict[str, ClientConnection] = {}
        self.closing: dict[str, ExitStack] = {}
        self.expected: dict[str, list[str]] = {"s1": [], "s2": []}

    def teardown(self) -> None:
        for closing in self.closing.values():
            closing.close()
        for session_id in self.model.sessions:
            self.http.delete(f"/sessions/{self.run}-{session_id}")

    def add_prompt(self, session_id: str, client_msg_id: str, text: str) -> str:
        if session_id not in self.listeners:
            self.closing[session_id] = ExitStack()
            connecting = self.at.connect(f"/ws/{self.run}-{session_id}")
            self.listeners[session_id] = self.closing[session_id].enter_context(connecting)
        known = client_msg_id in (self.pending_or_answered(session_id))
        body = {"session_id": f"{self.run}-{session_id}", "client_msg_id": client_msg_id, "prompt": text}
        answer = self.http.post("/prompt", json=body)
        assert (answer.status_code, answer.json()) == (200, {"stored": True, "client_msg_id": client_msg_id})
        return "duplicate" if known else "kept"

    def pending_or_answered(self, session_id: str) -> set[str]:
        page = self.history(session_id, 1000, 0)
        return set() if page is None else {id_ for kind, id_ in page[1] if kind == "prompt"}

    def add_response(self, session_id: str, client_msg_id: str, assistant_msg_id: str, text: str) -> str:
        before = self.history(session_id, 1000, 0)
        body = {
            "session_id": f"{self.run}-{session_id}",
            "client_msg_id": client_msg_id,
            "assistant_msg_id": assistant_msg_id,
            "text": text,
        }
        answer = self.http.post("/response", json=body)
        if answer.status_code == 200:
            if self.history(session_id, 1000, 0) == before:
                return "duplicate"
            self.expected[session_id].append(assistant_msg_id)
            return "kept"
        return {"session_not_found": "no session", "prompt_not_found": "no prompt", "response_conflict": "conflict"}[
            answer.json()["code"]
        ]

    def delete(self, session_id: str) -> bool:
        if self.listeners.pop(session_id, None):
            self.closing.pop(session_id).close()
        return self.http.delete(f"/sessions/{self.run}-{session_id}").status_code == 200

    def pending(self, session_id: str) -> list[str] | None:
        answer = self.http.get(f"/prompts/{self.run}-{session_id}", params={"wait": "false"})
        return None if answer.status_code == 404 else [prompt["client_msg_id"] for prompt in answer.json()]

    def history(self, session_id: str, limit: int, offset: int) -> tuple[int, list[tuple[str, str]]] | None:
        query = {"limit": limit, "offset": offset}
        answer = self.http.get(f"/messages/{self.run}-{session_id}", params=query)
        if answer.status_code == 404:
            return None
        page = answer.json()
        named = [(message["type"], message["data"]) for message in page["messages"]]
        return page["total"], [(kind, data.get("assistant_msg_id", data["client_msg_id"])) for kind, data in named]

    @invariant()
    def listeners_get_each_answer_once_and_in_order(self) -> None:
        for session_id, expected in self.expected.items():
            if session_id in self.listeners:
                got = [next_message(self.listeners[session_id])["assistant_msg_id"] for _ in expected]
                assert got == expected
            expected.clear()


def test_any_order_of_requests_leaves_the_relay_as_the_model_says(at: Address, http: httpx.Client) -> None:
    run_state_machine_as_test(lambda: HttpMachine(at, http), settings=QUICKER)  # type: ignore[arg-type]
