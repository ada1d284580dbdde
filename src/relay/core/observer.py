"""What the core tells the world about itself: one method for each thing worth a log line or a metric.

The server's telemetry implements it; the core neither logs nor counts. No method is given the text of a message.
"""

from __future__ import annotations

from enum import Enum

from relay.errors import StoreUnavailable
from relay.store.base import Outcome


class WakeCause(str, Enum):
    """Why a waiting poll stopped waiting."""

    PROMPT = "prompt"
    TIMEOUT = "timeout"
    SAFETY = "safety"
    DRAIN = "drain"
    DELETED = "deleted"
    GONE = "gone"

    @property
    def is_final(self) -> bool:
        """Whether the poll must end, whatever else happened in the same moment."""
        return self in (WakeCause.DRAIN, WakeCause.DELETED, WakeCause.GONE)


class Observer:
    """Sees everything, does nothing."""

    def prompt_stored(self, session_id: str, client_msg_id: str, size: int, outcome: Outcome) -> None:
        """A prompt was kept, or was there already."""

    def prompts_fetched(self, session_id: str, count: int) -> None:
        """An agent was handed pending prompts."""

    def response_posted(
        self, session_id: str, assistant_msg_id: str, client_msg_id: str, size: int, outcome: Outcome
    ) -> None:
        """A response was kept, or was there already."""

    def client_connected(self, session_id: str) -> None:
        """A client listens."""

    def client_disconnected(self, session_id: str, close_code: int) -> None:
        """A client listens no more."""

    def poll_woken(self, cause: WakeCause) -> None:
        """A waiting poll stopped waiting."""

    def fanned_out(self, seconds: float) -> None:
        """So long it took until an answer was given to every live client."""

    def queue_overflowed(self, session_id: str) -> None:
        """A client reads too slowly and now follows the log by itself."""

    def store_failed(self, error: StoreUnavailable) -> None:
        """The store does not answer, or cannot keep anything."""

    def announcements_lost(self) -> None:
        """The store was out of reach for a moment."""

    def session_deleted(self, session_id: str) -> None:
        """A session was deleted by request."""

    def sessions_collected(self, count: int) -> None:
        """Idle sessions were removed."""
