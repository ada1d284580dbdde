"""A Hypothesis state machine that plays any order of calls against a relay and the model, and compares after each.

A concrete machine says how to call; see tests/store/test_any_order.py and tests/protocol/test_any_order.py.
"""

from __future__ import annotations

from abc import abstractmethod

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.model import Model

SESSIONS = st.sampled_from(["s1", "s2"])
PROMPTS = st.sampled_from(["p1", "p2", "p3", "p4"])
RESPONSES = st.sampled_from(["a1", "a2", "a3"])
TEXTS = st.sampled_from(["", "one", "two"])

QUICK = settings(max_examples=40, stateful_step_count=40, deadline=None, print_blob=True)
QUICKER = settings(QUICK, max_examples=15)
"""For a machine whose every step is several requests."""


class AnyOrder(RuleBasedStateMachine):
    """Prompts, responses and deletions in any order, on few ids, so that they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @abstractmethod
    def add_prompt(self, session_id: str, client_msg_id: str, text: str) -> str:
        """Post it; kept or duplicate."""

    @abstractmethod
    def add_response(self, session_id: str, client_msg_id: str, assistant_msg_id: str, text: str) -> str:
        """Post it; kept, duplicate, conflict, no session or no prompt."""

    @abstractmethod
    def delete(self, session_id: str) -> bool:
        """Whether there was such a session."""

    @abstractmethod
    def pending(self, session_id: str) -> list[str] | None:
        """client_msg_ids; None if there is no session."""

    @abstractmethod
    def history(self, session_id: str, limit: int, offset: int) -> tuple[int, list[tuple[str, str]]] | None:
        """Total, and kind and id of each; None if there is no session."""

    @rule(session_id=SESSIONS, client_msg_id=PROMPTS, text=TEXTS)
    def submit(self, session_id: str, client_msg_id: str, text: str) -> None:
        assert self.add_prompt(session_id, client_msg_id, text) == self.model.prompt(session_id, client_msg_id, text)

    @rule(session_id=SESSIONS, client_msg_id=PROMPTS, assistant_msg_id=RESPONSES, text=TEXTS)
    def respond(self, session_id: str, client_msg_id: str, assistant_msg_id: str, text: str) -> None:
        expected = self.model.respond(session_id, client_msg_id, assistant_msg_id, text)
        assert self.add_response(session_id, client_msg_id, assistant_msg_id, text) == expected

    @rule(session_id=SESSIONS)
    def forget(self, session_id: str) -> None:
        assert self.delete(session_id) == (self.model.sessions.pop(session_id, None) is not None)

    @rule(session_id=SESSIONS, limit=st.integers(1, 5), offset=st.integers(0, 6))
    def page(self, session_id: str, limit: int, offset: int) -> None:
        session = self.model.sessions.get(session_id)
        expected = session and (len(session.history), session.history[offset : offset + limit])
        assert self.history(session_id, limit, offset) == expected

    @invariant()
    def pending_is_as_the_model_says(self) -> None:
        for session_id in ("s1", "s2"):
            session = self.model.sessions.get(session_id)
            assert self.pending(session_id) == (None if session is None else session.pending)

    @invariant()
    def history_is_as_the_model_says(self) -> None:
        for session_id in ("s1", "s2"):
            session = self.model.sessions.get(session_id)
            expected = None if session is None else (len(session.history), session.history)
            assert self.history(session_id, 1000, 0) == expected
