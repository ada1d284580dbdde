"""The rules of the specification: what happens to a prompt, a response, a poll, a connected client.

Knows the store only by its promises and listeners only through the hub; time, ids and the observer are passed in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from relay.config import Settings, UnknownSession
from relay.core.hub import Hub
from relay.core.observer import Observer, WakeCause
from relay.core.subscriber import CLOSE_SESSION_DELETED, CLOSE_SLOW, Frame, Subscriber
from relay.core.waiter import Waiter
from relay.errors import (
    RelayError,
    ResponseConflict,
    SessionNotFound,
    StoreUnavailable,
    TooManyPolls,
    TooManySubscribers,
)
from relay.models import ASSISTANT, PROMPT, Number, Session
from relay.store.base import (
    CONFLICT,
    Entry,
    HistoryPage,
    LogPage,
    NewEntry,
    Outcome,
    Seat,
    SessionRecord,
    Store,
)
from relay.wire import NewPrompt, NewResponse, encode_message, meaning, message_frame

SAFETY_SECONDS = 15.0
"""A waiting poll looks again after so long: a lost announcement delays a prompt, it never loses it."""

RETRY_SECONDS = 0.5
"""How soon a client's log is tried again while the store is away."""

AGAIN_SECONDS = 0.005
"""How soon it is read again if an announcement came while it was being read."""

PAGE_ENTRIES = 100
PAGE_BYTES = 1024**2
"""How much of the log a lagging client takes at a time."""


WhenGone = Callable[[Callable[[], None]], Callable[[], object]]
"""Given a function to call when the caller of a poll hangs up; returns one that takes that back."""


class ClientGone(Exception):
    """The caller of a poll has hung up; nobody is left to answer."""


_REFUSALS: Mapping[WakeCause, type[Exception]] = {WakeCause.GONE: ClientGone, WakeCause.DELETED: SessionNotFound}
_POLL = Seat.POLL
_CLIENT = Seat.CLIENT
_LAST_LOOKS = frozenset({WakeCause.TIMEOUT, WakeCause.DRAIN})


class Posted(msgspec.Struct, frozen=True, gc=False):
    """An accepted response: its id, and how many clients of this instance it was handed to."""

    assistant_msg_id: str
    recipients: int


class Relay:
    """One method for each thing that an actor of the specification can do."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        settings: Settings,
        observer: Observer,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._hub = hub
        self._settings = settings
        self._observer = observer
        self._now_ms = now_ms
        self._new_id = new_id
        self._clock = clock
        self._max_clients = settings.max_subscribers_per_session
        self._max_polls = settings.max_waiting_polls_per_session
        self._used: dict[str, int] = {}  # session → when it was last read; told to the store by sweep_idle

    def submit_prompt(self, prompt: NewPrompt) -> str | Coroutine[Any, Any, str]:
        """Keep a prompt and wake the agent; its client_msg_id, or a coroutine if the store has to wait.

        The first write under an id wins.
        """
        clock = self._now_ms  # what is called in the same step Python takes for a method, and looks for longer
        now_ms = clock()
        session_id, client_msg_id, ts = prompt.session_id, prompt.client_msg_id, prompt.ts
        if client_msg_id is None:
            client_msg_id = prompt.client_msg_id = self._new_id()
        if ts is None:
            ts = prompt.ts = now_ms
        data = encode_message(prompt)
        kept = self._store.add_prompt(NewEntry(session_id, PROMPT, client_msg_id, client_msg_id, ts, data, now_ms))
        if not isinstance(kept, Outcome):
            return self._submit_later(session_id, client_msg_id, len(data), kept)
        self._observer.prompt_stored(session_id, client_msg_id, len(data), kept)
        return client_msg_id

    async def _submit_later(self, session_id: str, client_msg_id: str, size: int, kept: Awaitable[Outcome]) -> str:
        self._observer.prompt_stored(session_id, client_msg_id, size, await kept)
        return client_msg_id

    def post_response(self, response: NewResponse) -> Posted | Coroutine[Any, Any, Posted]:
        """Keep a response, end its prompt's wait and hand it to every connected client; a coroutine, as above.

        The same response again is accepted and not sent twice. Raises SessionNotFound, PromptNotFound and, if
        the id was used for something else, ResponseConflict.
        """
        clock = self._now_ms
        now_ms = clock()
        assistant_msg_id, ts = response.assistant_msg_id, response.ts
        if assistant_msg_id is None:
            assistant_msg_id = response.assistant_msg_id = self._new_id()
        if ts is None:
            ts = response.ts = now_ms
        data = encode_message(response)
        entry = NewEntry(
            response.session_id,
            ASSISTANT,
            assistant_msg_id,
            response.client_msg_id,
            ts,
            data,
            now_ms,
            meaning(response),
        )
        kept = self._store.add_response(entry)
        return self._posted(entry, kept) if isinstance(kept, Outcome) else self._post_later(entry, kept)

    async def _post_later(self, entry: NewEntry, kept: Awaitable[Outcome]) -> Posted:
        return self._posted(entry, await kept)

    def _posted(self, entry: NewEntry, outcome: Outcome) -> Posted:
        session_id, assistant_msg_id = entry.session_id, entry.message_id
        if outcome is CONFLICT:
            raise ResponseConflict("client_msg_id, text or metadata differ from the first response with this id")
        self._observer.response_posted(session_id, assistant_msg_id, entry.client_msg_id, len(entry.data), outcome)
        return Posted(assistant_msg_id, self._hub.clients(session_id))

    async def pending(self, session_id: str) -> Sequence[Entry]:
        """Prompts without a response, oldest first, at once. Raises SessionNotFound."""
        prompts = await self._store.pending(session_id)
        self._fetched(session_id, prompts)
        return prompts

    async def wait_pending(
        self,
        session_id: str,
        timeout_seconds: float,
        when_gone: WhenGone,
        *,
        by_hand: bool = False,
    ) -> Sequence[Entry]:
        """Prompts without a response; if there are none, wait for one, and return none when the time is up.

        `when_gone` is given a function to call when the caller hangs up, and returns one that takes that back; it is
        used only if there is a wait, which then ends with ClientGone. `by_hand`: see `Waiter.wait`.
        Raises SessionNotFound (also if the session is deleted meanwhile) and TooManyPolls.
        """
        # Register before reading: a prompt kept between the read and the wait would otherwise sleep until the
        # timeout. The cost is one spurious wake-up, which the loop absorbs.
        waiter = self._hub.add_waiter(session_id)
        try:
            prompts = await self._store.pending(session_id)
            if not prompts and timeout_seconds > 0:
                prompts = await self._wait_for_prompts(session_id, waiter, timeout_seconds, when_gone, by_hand=by_hand)
        finally:
            self._hub.remove_waiter(session_id, waiter)
        self._fetched(session_id, prompts)
        return prompts

    async def _wait_for_prompts(
        self, session_id: str, waiter: Waiter, timeout_seconds: float, when_gone: WhenGone, *, by_hand: bool
    ) -> Sequence[Entry]:
        deadline = self._clock() + timeout_seconds
        self._hub.admit_wait()
        if not await self._store.take_seat(session_id, _POLL, self._max_polls):
            raise TooManyPolls(f"a session has at most {self._max_polls} waiting polls")
        waiter.seated = True
        forget = when_gone(waiter.hang_up)
        try:
            while True:
                cause = await waiter.wait(deadline - self._clock(), SAFETY_SECONDS, by_hand=by_hand)
                self._observer.poll_woken(cause)
                if cause in _REFUSALS:
                    raise _REFUSALS[cause]
                prompts = await self._store.pending(session_id)
                if prompts or cause in _LAST_LOOKS:
                    return prompts
        finally:
            forget()
            waiter.seated = False
            await self._leave_seat(session_id, _POLL)

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        """A page of the messages with ts > since, oldest first. Raises SessionNotFound."""
        page = await self._store.history(session_id, limit=limit, offset=offset, since=since)
        self._used[session_id] = self._now_ms()
        return page

    async def session(self, session_id: str) -> Session:
        """What is known of one session. Raises SessionNotFound."""
        return self._describe(await self._store.session(session_id))

    async def sessions(self, *, limit: int, offset: int) -> tuple[int, list[Session]]:
        """How many sessions there are, and some of them in the order of their creation."""
        page = await self._store.sessions(limit=limit, offset=offset)
        return page.total, [self._describe(record) for record in page.records]

    async def delete_session(self, session_id: str) -> None:
        """Forget a session; its clients are closed and its polls end. Raises SessionNotFound."""
        await self._store.delete_session(session_id)
        self._used.pop(session_id, None)
        self._observer.session_deleted(session_id)

    async def subscribe(self, session_id: str) -> Subscriber:
        """Register a client that wants every answer from now on: its queue has them, or `catch_up`.

        Raises SessionNotFound for an unknown session if so configured, TooManySubscribers, Draining.
        """
        head = await self._store.head(session_id)
        if head is None and self._settings.ws_unknown_session is UnknownSession.REJECT:
            raise SessionNotFound
        subscriber = Subscriber(session_id, head.epoch if head else None, head.seq if head else 0)
        if not await self._store.take_seat(session_id, _CLIENT, self._max_clients):
            raise TooManySubscribers(f"a session has at most {self._max_clients} connected clients")
        try:
            self._hub.subscribe(subscriber)
        except RelayError:
            await self._leave_seat(session_id, _CLIENT)
            raise
        return subscriber

    async def unsubscribe(self, subscriber: Subscriber) -> None:
        """The client is gone."""
        self._hub.unsubscribe(subscriber)
        if subscriber.epoch is not None:
            self._used[subscriber.session_id] = self._now_ms()
        await self._leave_seat(subscriber.session_id, _CLIENT)

    async def catch_up(self, subscriber: Subscriber) -> AsyncIterator[Frame]:
        """The frames that a lagging client missed, from the log, until it is live or closed."""
        while not subscriber.live and subscriber.close_code is None:
            try:
                await self._dispel_doubt(subscriber.session_id)
                page = await self._read_log(subscriber)
            except StoreUnavailable as error:
                self._observer.store_failed(error)
                await subscriber.wait_idle(RETRY_SECONDS)  # the client stays connected; the log will come back
                for frame in subscriber.take():
                    yield frame  # pings
                continue
            if page is not None and page.epoch != subscriber.epoch:
                subscriber.epoch, subscriber.position = page.epoch, 0  # the log began, or began anew
            elif page is None and subscriber.epoch is not None:
                subscriber.close(CLOSE_SESSION_DELETED, "session deleted")
            elif page is not None and page.floor > subscriber.position:
                subscriber.close(CLOSE_SLOW, "fell behind the history")
            elif page is None or not page.entries:
                if not self._hub.go_live(subscriber):
                    await subscriber.wait_idle(AGAIN_SECONDS)
            else:
                for entry in page.entries:
                    if entry.kind is ASSISTANT:
                        yield Frame(message_frame(entry.data))
                    subscriber.position = entry.seq
                await asyncio.sleep(0)  # a long way to catch up must not hold up everybody else

    async def _dispel_doubt(self, session_id: str) -> None:
        """After the store was away: see that the log still holds what was announced, else give it a new epoch."""
        doubt = self._hub.doubted(session_id)
        if doubt is None:
            return
        if doubt.seq > 0:
            try:
                page = await self._store.read(session_id, doubt.seq - 1, limit=1, max_bytes=PAGE_BYTES)
            except SessionNotFound:
                page = None
            if page is not None and page.epoch == doubt.epoch and page.floor < doubt.seq:
                found = page.entries[0].data if page.entries else None
                if found is None or (doubt.data is not None and found != doubt.data):
                    await self._store.renew_epoch(session_id, doubt.epoch)
        self._hub.trust(session_id)

    async def _read_log(self, subscriber: Subscriber) -> LogPage | None:
        try:
            return await self._store.read(
                subscriber.session_id, subscriber.position, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES
            )
        except SessionNotFound:
            return None

    async def sweep_idle(self) -> None:
        """Remove sessions that were not used for too long; those in use are noted as such."""
        now_ms = self._now_ms()
        used, self._used = self._used, {}
        keep = set(self._hub.listened())
        await self._store.touch(used | dict.fromkeys(keep, now_ms))
        await self._store.hold_seats(self._hub.places())
        ttl_ms = int(self._settings.session_ttl_seconds * 1000)
        if ttl_ms and (collected := await self._store.collect_idle(now_ms - ttl_ms, keep=keep)):
            self._observer.sessions_collected(len(collected))

    async def check(self) -> None:
        """Return if the server can do its job, else raise StoreUnavailable."""
        await self._store.check()

    async def _leave_seat(self, session_id: str, seat: Seat) -> None:
        try:
            await self._store.leave_seat(session_id, seat)
        except StoreUnavailable:
            return  # the next round of hold_seats tells it

    def _fetched(self, session_id: str, prompts: Sequence[Entry]) -> None:
        self._used[session_id] = self._now_ms()
        if prompts:
            self._observer.prompts_fetched(session_id, len(prompts))

    def _describe(self, record: SessionRecord) -> Session:
        return Session(
            session_id=record.session_id,
            created=record.created_ms,
            last_activity=max(record.active_ms, self._used.get(record.session_id, 0)),
            messages=record.messages,
            pending=record.pending,
            clients=self._hub.clients(record.session_id),
            waiting_agents=self._hub.waiting(record.session_id),
        )
