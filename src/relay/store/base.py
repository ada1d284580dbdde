"""What a store promises. A backend keeps a session's log and announces what it kept.

A session is an append-only log. Each prompt and each response is one entry with a dense `seq`, 1, 2, 3…, given in
the same atomic step that keeps it. `epoch` names one life of the log: it is new whenever a log begins anew, so that
(epoch, seq) is never ambiguous. Order is always seq, never ts.

Every sentence below has a test in tests/store/test_contract.py or, for what instances agree on, test_commons.py. Both
run unchanged on every backend; what it takes two instances to show is in test_redis_commons.py. Time and ids are
passed in. Any method may raise StoreUnavailable; then nothing was changed or, if the store went away in the very
moment, all of it: repeating the call is safe, and tells.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from relay.errors import TooManyPending, TooManySessions
from relay.models import MessageType, Number
from relay.wire import Meaning


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One message in a session's log; `data` is its JSON, ready to be served.

    A store may note more with it, in a class of its own: that makes it no other entry.
    """

    seq: int
    kind: MessageType
    ts: Number
    data: bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (self.seq, self.kind, self.ts, self.data) == (other.seq, other.kind, other.ts, other.data)

    def __ne__(self, other: object) -> bool:  # msgspec has one of its own
        return not self == other

    def __hash__(self) -> int:
        return hash((self.seq, self.kind, self.ts, self.data))


class NewEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message to be kept. `message_id` is what must be unique: the prompt's or the response's own id."""

    session_id: str
    kind: MessageType
    message_id: str
    client_msg_id: str
    ts: Number
    data: bytes
    now_ms: int
    meaning: Meaning = ("", "", b"")
    """What must be the same if a response comes again; nobody asks that of a prompt."""


class Outcome(Enum):
    """What became of an entry. Repeating a request is ordinary, hence no exception.

    It can be awaited, and is there at once: a store that has nothing to wait for returns it as it is.
    """

    KEPT = "kept"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"

    def __await__(self) -> Generator[Any, Any, Outcome]:
        yield from ()
        return self


KEPT = Outcome.KEPT
DUPLICATE = Outcome.DUPLICATE
CONFLICT = Outcome.CONFLICT


class Position(msgspec.Struct, frozen=True, gc=False):
    """A place in a session's log."""

    epoch: str
    seq: int


class LogPage(msgspec.Struct, frozen=True):
    """Entries after a position. `floor` is the last seq that is no longer held, 0 if all are."""

    epoch: str
    floor: int
    entries: Sequence[Entry]


class HistoryPage(msgspec.Struct, frozen=True):
    """Entries of the history; `total` counts all that match, before limit and offset."""

    total: int
    entries: Sequence[Entry]


class SessionRecord(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a session."""

    session_id: str
    created_ms: int
    active_ms: int
    messages: int
    pending: int


class SessionRecordPage(msgspec.Struct, frozen=True):
    """Some sessions, and how many there are."""

    total: int
    records: Sequence[SessionRecord]


class Seat(str, Enum):
    """What a session has only so many places for."""

    CLIENT = "client"
    """A WebSocket client."""
    POLL = "poll"
    """A poll that waits."""


Place = tuple[str, Seat]
"""A session, and a kind of place in it."""

SEAT_SECONDS = 180.0
"""So long a place is taken for an instance that says no more of it: three of its rounds, so that one may fail."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What a bucket gave. `wait_seconds`: until the next token is there, if there is none; else 0."""

    tokens: int
    wait_seconds: float


TAIL_MESSAGES = 256
TAIL_BYTES = 1024**2
"""With history off the log still keeps so much, for a client that falls behind for a moment."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds a store keeps to."""

    history: bool
    history_max_messages: int
    history_max_bytes: int
    max_pending_per_session: int
    max_sessions: int
    store_max_bytes: int

    @property
    def log_messages(self) -> int:
        """How many entries a log keeps."""
        return self.history_max_messages if self.history else TAIL_MESSAGES

    @property
    def log_bytes(self) -> int:
        """How many bytes a log keeps."""
        return self.history_max_bytes if self.history else TAIL_BYTES

    def too_many_sessions(self) -> TooManySessions:
        """The refusal of one more session."""
        return TooManySessions(f"this server holds at most {self.max_sessions} sessions")

    def too_many_pending(self) -> TooManyPending:
        """The refusal of one more prompt."""
        return TooManyPending(f"this session holds at most {self.max_pending_per_session} unanswered prompts")


class Listener(Protocol):
    """Who is told what a store has kept. Announcements are hints: one may be lost, late or doubled."""

    def entry_added(self, session_id: str, epoch: str, entry: Entry) -> None:
        """The session's log has reached entry.seq."""

    def session_deleted(self, session_id: str) -> None:
        """The session is gone, and everything in it."""

    def announcements_lost(self) -> None:
        """The store was out of reach: announcements may be lost, and logs may have moved backwards."""


class Store(Protocol):
    """Where sessions live."""

    async def open(self, listener: Listener) -> None:
        """Make ready; from now on `listener` is told of everything kept, after it was kept."""

    async def close(self) -> None:
        """Let go of every resource. Nothing acknowledged is lost by it."""

    async def check(self) -> None:
        """Return if the store can keep messages now, else raise StoreUnavailable."""

    def add_prompt(self, entry: NewEntry) -> Awaitable[Outcome]:
        """Keep a prompt, make it pending and announce it: all of it or none. Creates the session if it is new.

        To be awaited at once: whether it begins when it is called or when it is awaited is the store's affair.

        DUPLICATE, and nothing changed or announced, if the session has had a prompt with this message_id, whatever
        else differs. Raises TooManyPending, TooManySessions, StoreFull; none of them for a duplicate.
        """

    def add_response(self, entry: NewEntry) -> Awaitable[Outcome]:
        """Keep a response, end its prompt's wait and announce it: all of it or none.

        DUPLICATE if this message_id was kept with the same meaning, CONFLICT if with another; then nothing is changed
        or announced. A further response to an answered prompt is KEPT.
        Raises SessionNotFound, PromptNotFound, StoreFull.
        """

    async def pending(self, session_id: str) -> Sequence[Entry]:
        """Prompts without a response, oldest first. Raises SessionNotFound."""

    async def head(self, session_id: str) -> Position | None:
        """The end of the log; None if there is no such session."""

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        """The entries after seq `after`, in order, at most `limit` and about `max_bytes`, but one if there is any.

        If some of them are no longer held, `floor` is above `after` and the page starts behind it.
        Raises SessionNotFound.
        """

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        """Give the log a new epoch, if it still has this one: it was seen to hold what it no longer holds.

        Its entries stay as they are. Raises SessionNotFound.
        """

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        """The messages held with ts > since, in order of seq; none if history is off. Raises SessionNotFound."""

    async def session(self, session_id: str) -> SessionRecord:
        """What is known of one session. Raises SessionNotFound."""

    async def sessions(self, *, limit: int, offset: int) -> SessionRecordPage:
        """Sessions in the order in which they were created."""

    async def touch(self, used_ms: Mapping[str, int]) -> None:
        """Note when sessions were last in use; an earlier time and an unknown session change nothing."""

    async def delete_session(self, session_id: str) -> None:
        """Forget the session and announce that. Raises SessionNotFound."""

    async def collect_idle(self, idle_since_ms: int, *, keep: Collection[str]) -> Sequence[str]:
        """Delete and announce sessions not active since `idle_since_ms`, without pending prompts and not in `keep`.

        Returns the ids of those deleted.
        """

    # What instances agree on for a moment. They share it where they share the store; it need not survive a restart.
    # Time is the store's own: the clocks of instances differ. Here a call that has failed may cost a place, some
    # tokens or a ticket if it is repeated.

    async def take_seat(self, session_id: str, seat: Seat, most: int) -> bool:
        """Take one of the session's `most` places of this kind, counted over every instance; False if all are taken.

        There need be no such session, and none is created; a place outlives the deletion of its session.
        """

    async def leave_seat(self, session_id: str, seat: Seat) -> None:
        """Give a place back. One that was not taken changes nothing."""

    async def hold_seats(self, held: Mapping[Place, int]) -> None:
        """Say which places this instance holds, all of them; to be called about once a minute.

        A place is held from the return of `take_seat` to the call of `leave_seat`. Places of an instance that has said
        nothing of them for SEAT_SECONDS are free for the others; a count that a failed call left wrong is right again.
        """

    async def take_tokens(self, bucket: str, want: int, *, per_second: float, burst: int) -> Grant:
        """Take up to `want` tokens from a bucket that holds `burst` and refills by `per_second`, which is above 0.

        A bucket that nobody has used is full. To want 0 is to ask whether there is one.
        """

    async def keep_ticket(self, ticket: str, holder: bytes, seconds: float) -> None:
        """Remember what a ticket stands for, for so long."""

    async def take_ticket(self, ticket: str) -> bytes | None:
        """What the ticket stands for, once: whoever comes second, or too late, gets None."""
