"""The relay in a few lines: what any order of calls must lead to. Knows nothing of how it is done."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Session:
    """One session of the model."""

    prompts: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    responses: dict[str, tuple[str, str]] = field(default_factory=dict)
    history: list[tuple[str, str]] = field(default_factory=list)

    @property
    def pending(self) -> list[str]:
        """Prompts without an answer, oldest first."""
        return [client_msg_id for client_msg_id in self.prompts if client_msg_id not in self.answered]


class Model:
    """Every session."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}

    def prompt(self, session_id: str, client_msg_id: str, text: str) -> str:
        """kept or duplicate"""
        session = self.sessions.setdefault(session_id, Session())
        if client_msg_id in session.prompts:
            return "duplicate"
        session.prompts[client_msg_id] = text
        session.history.append(("prompt", client_msg_id))
        return "kept"

    def respond(self, session_id: str, client_msg_id: str, assistant_msg_id: str, text: str) -> str:
        """kept, duplicate, conflict, no session or no prompt"""
        session = self.sessions.get(session_id)
        if session is None:
            return "no session"
        if known := session.responses.get(assistant_msg_id):
            return "duplicate" if known == (client_msg_id, text) else "conflict"
        if client_msg_id not in session.prompts:
            return "no prompt"
        session.responses[assistant_msg_id] = (client_msg_id, text)
        session.answered.add(client_msg_id)
        session.history.append(("assistant", assistant_msg_id))
        return "kept"
