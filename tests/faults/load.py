"""Writers that never stop asking and answering, and remember exactly what was acknowledged to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2 as httpx

from tests.protocol.talk import Talk

ROOM = {"max_pending_per_session": 1_000_000, "history_max_messages": 10_000_000, "history_max_bytes": 2**40}
"""Settings under which a long load meets no bound, and its whole history can be checked."""


@dataclass
class Ledger:
    """What one writer knows of its session. Unknown: sent, but nobody said what became of it."""

    session_id: str
    prompts: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    unknown_prompts: set[str] = field(default_factory=set)
    unknown_answers: dict[str, str] = field(default_factory=dict)
    refused: int = 0

    def check(self, http: httpx.Client) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and exactly the unanswered prompts are pending."""
        if not self.prompts and http.get(f"/sessions/{self.session_id}").status_code == 404:
            return
        prompts, answers = self._history(http)
        assert len(prompts) == len(set(prompts)), "a prompt is there twice"
        assert len(answers) == len(dict(answers)), "an answer is there twice"
        assert self.prompts <= set(prompts), "an acknowledged prompt is lost"
        assert set(self.answers) <= set(dict(answers)), "an acknowledged answer is lost"
        assert set(prompts) <= self.prompts | self.unknown_prompts, "a prompt that nobody posted"
        assert set(dict(answers)) <= set(self.answers) | set(self.unknown_answers), "an answer that nobody posted"
        answered = {client_msg_id for _, client_msg_id in answers}
        assert Talk(http, self.session_id).pending_ids() == [p for p in prompts if p not in answered]

    def settle(self, http: httpx.Client) -> None:
        """Send again what nobody confirmed: it is kept now, once."""
        talk = Talk(http, self.session_id)
        for client_msg_id in sorted(self.unknown_prompts):
            talk.prompt(client_msg_id=client_msg_id)
        for assistant_msg_id, client_msg_id in self.unknown_answers.items():
            talk.respond(client_msg_id, assistant_msg_id=assistant_msg_id)
        self.prompts |= self.unknown_prompts
        self.answers |= self.unknown_answers
        self.unknown_prompts, self.unknown_answers = set(), {}

    def _history(self, http: httpx.Client) -> tuple[list[str], list[tuple[str, str]]]:
        messages: list[dict[str, dict[str, str]]] = []
        talk = Talk(http, self.session_id)
        while len(messages) < (page := talk.messages(limit=1000, offset=len(messages)))["total"]:
            messages += page["messages"]
        data = [message["data"] for message in messages]
        prompts = [d["client_msg_id"] for d in data if "prompt" in d]
        return prompts, [(d["assistant_msg_id"], d["client_msg_id"]) for d in data if "text" in d]


def acknowledged(ledgers: list[Ledger]) -> int:
    """How many messages in all."""
    return sum(len(ledger.prompts) + len(ledger.answers) for ledger in ledgers)


class Writer(threading.Thread):
    """Posts prompts, and answers most of them, until told to stop."""

    def __init__(self, urls: list[str], ledger: Ledger, number: int) -> None:
        super().__init__(daemon=True)
        self.urls = urls
        self.ledger = ledger
        self.number = number
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._random = random.Random(number)
        self._count = len(ledger.prompts) + len(ledger.unknown_prompts)

    def run(self) -> None:
        try:
            with httpx.Client(timeout=10) as http:
                while not self.stopped.is_set():
                    self._turn(http)
        except BaseException as failure:
            self.failure = failure

    def _turn(self, http: httpx.Client) -> None:
        self._count += 1
        client_msg_id = f"p{self.number}-{self._count}"
        body = {"session_id": self.ledger.session_id, "client_msg_id": client_msg_id, "prompt": "x" * 300}
        if not self._post(http, "/prompt", body, self.ledger.unknown_prompts):
            return
        self.ledger.prompts.add(client_msg_id)
        if self._random.random() < 0.8:
            assistant_msg_id = f"a-{client_msg_id}"
            answer = {"client_msg_id": client_msg_id, "assistant_msg_id": assistant_msg_id, "text": "Hi there!"}
            answer["session_id"] = self.ledger.session_id
            if self._post(http, "/response", answer, None):
                self.ledger.answers[assistant_msg_id] = client_msg_id

    def _post(self, http: httpx.Client, path: str, body: dict[str, str], unknown: set[str] | None) -> bool:
        """Whether it was acknowledged; if nobody knows, it is noted as unknown."""
        try:
            answer = http.post(self._random.choice(self.urls) + path, json=body)
        except httpx.ConnectError:
            return False  # it never left
        except httpx.HTTPError:
            answer = None
        if answer is not None and answer.status_code == 200:
            return True
        # A 503 may have been kept nevertheless: the store may have died between keeping and saying so.
        assert answer is None or answer.status_code == 503, answer.text
        self.ledger.refused += answer is not None
        if answer is not None:
            assert int(answer.headers["retry-after"]) >= 1
        if unknown is not None:
            unknown.add(body["client_msg_id"])
        else:
            self.ledger.unknown_answers[body["assistant_msg_id"]] = body["client_msg_id"]
        return False


@contextmanager
def writing(urls: list[str], ledgers: list[Ledger]) -> Iterator[list[Writer]]:
    """One writer per ledger, at work for the length of the block."""
    writers = [Writer(urls, ledger, number) for number, ledger in enumerate(ledgers)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stopped.set()
        for writer in writers:
            writer.join(30)
    for writer in writers:
        if writer.failure is not None:
            raise writer.failure
