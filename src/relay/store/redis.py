"""The store for several instances: Redis (6.2 or newer) or Valkey. What is promised lasts as long as Redis keeps it.

Every step that must be atomic is a script in `lua/`; this module says what its answers mean. Keys, where {sid} keeps
all keys of a session in one hash slot:

    relay:{sid}:meta     hash    e epoch, s last seq, f floor, b bytes in the log, c created_ms, a active_ms,
                                 l the first epoch ("life"), r set once the session is on the list below
    relay:{sid}:log      stream  id <seq>-0: k kind, t ts, d data
    relay:{sid}:ids      hash    p:<client_msg_id> → seq, a:<assistant_msg_id> → fingerprint
    relay:{sid}:pending  hash    client_msg_id → seq, ts and data: apart from the log, so that trimming loses no work
    relay:{sid}:times    list    the ts of each entry of the log: to find those after some time without reading all
    relay:sessions       zset    <life>:<sid>, in order of creation, see redis_sessions.py
    relay:events         channel what was kept, see redis_events.py

What instances agree on for a moment is beside it, in keys that expire: see redis_commons.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

from relay.errors import (
    PromptNotFound,
    SessionNotFound,
    StartupError,
    StoreUnavailable,
)
from relay.models import MessageType, Number
from relay.store.base import (
    KEPT,
    SEAT_SECONDS,
    Entry,
    HistoryPage,
    Listener,
    LogPage,
    NewEntry,
    Outcome,
    Position,
    SessionRecord,
    SessionRecordPage,
    StoreLimits,
)
from relay.store.redis_cluster import ClusterLink
from relay.store.redis_commons import RedisCommons
from relay.store.redis_connection import Reply
from relay.store.redis_events import INLINE_BYTES, KINDS, Events, number, number_text
from relay.store.redis_link import ServerLink, check_server
from relay.store.redis_saying import Keeping, Parting
from relay.store.redis_script import Script, packed
from relay.store.redis_sessions import Name, SessionList, in_turn
from relay.store.redis_url import Topology, parse_redis_url
from relay.wire import fingerprint

OPEN_SECONDS = 5.0
"""How long a server that is only just starting may take before we give up."""

_BEYOND = 2**63
"""A seq that no log reaches; Redis understands no larger one than twice that."""

_PENDING = Script("pending", writes=False, keys=2)
_READ = Script("read", "page", writes=False)
_RENEW_EPOCH = Script("renew_epoch")
_HISTORY = Script("history", "page", writes=False)
_SESSION = Script("session", writes=False)
_TOUCH = Script("touch")
_DELETE = Script("delete")
_COLLECT = Script("collect")
_CHECK = Script("check")

_KEEP = b"%b%b%b" + 5 * b"$%d\r\n%b\r\n" + b"%b"
"""A call of one of the two that keep: its head, keys and session, the caller, five arguments, and those that differ."""

_NO_EPOCH = packed(b"")

_by_seq = attrgetter("seq")

_OUTCOMES = {b"kept": Outcome.KEPT, b"duplicate": Outcome.DUPLICATE, b"conflict": Outcome.CONFLICT}


class RedisStore(RedisCommons):
    """See `Store` for what it promises, with one reservation.

    A write that raises StoreUnavailable may have been kept all the same, as a whole: its reply was lost, or fewer
    than `wait_replicas` have confirmed it in time. It is announced then, and repeating it is safe: its id tells.
    `store_max_bytes` is not for this store; the server has a bound of its own, `maxmemory`.
    """

    def __init__(
        self,
        url: str,
        limits: StoreLimits,
        *,
        wait_replicas: int = 0,
        prefix: str = "relay",
        probe_seconds: float = 5.0,
        seat_seconds: float = SEAT_SECONDS,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        """Raises StartupError if the URL is wrong. Nothing is connected before `open`."""
        super().__init__(prefix, seat_seconds)
        self._address = parse_redis_url(url)
        self._limits = limits
        self._wait_replicas = wait_replicas
        self._probe_seconds = probe_seconds
        self._new_epoch = new_epoch
        self._add_prompt: Script
        self._add_response: Script
        self._events: Events
        self._list: SessionList

    async def open(self, listener: Listener) -> None:
        """See `Store`. Raises StartupError if there is no Redis, or one that is too old."""
        kind = ClusterLink if self._address.topology is Topology.CLUSTER else ServerLink
        self._link = kind(self._address, wait_replicas=self._wait_replicas)
        self._list = SessionList(self._link, f"{self._prefix}:sessions".encode())
        # Announcements know no databases: those of another one would be heard on the same channel.
        channel = f"{self._prefix}:events" + (f":{self._address.db}" if self._address.db else "")
        constants: dict[str, str | int] = {
            "MOST_MESSAGES": self._limits.log_messages,
            "MOST_BYTES": self._limits.log_bytes,
            "CHANNEL": channel,
            "INLINE_BYTES": INLINE_BYTES,
            "WAITS": self._wait_replicas > 0,
            "ONE_SERVER": self._link.is_one_server,
        }
        pending = {"MOST_PENDING": self._limits.max_pending_per_session}
        self._add_prompt = Script("add_prompt", "keep", keys=5, args=8, constants=constants | pending)
        self._add_response = Script("add_response", "keep", keys=5, args=9, constants=constants)
        self._events = Events(self._link, channel, listener, self._fetch, probe_seconds=self._probe_seconds)
        try:
            await self._events.start(OPEN_SECONDS)
            await check_server(self._link)
        except StoreUnavailable as exc:
            await self.close()
            raise StartupError(f"RELAY_STORE_URL: no Redis answers at {self._address.name}: {exc.__cause__}") from exc
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._give_back()
        await self._events.stop()
        await self._link.close()

    async def check(self) -> None:
        """See `Store`. Announcements have to arrive too: without them nobody would be told of anything."""
        if not self._events.hears:
            raise StoreUnavailable from self._events.last_error
        await asyncio.gather(self._link.ping(), self._link.run(_CHECK, (f"{self._prefix}:check".encode(),)))

    async def add_prompt(self, entry: NewEntry) -> Outcome:
        """See `Store`. Sessions created at the very same moment may pass the bound of sessions together."""
        reply = await self._keep(self._add_prompt, entry, _NO_EPOCH)
        if reply[0] == b"kept" and not reply[1]:
            return KEPT
        if reply[0] == b"new":
            if await self._list.count() >= self._limits.max_sessions:
                raise self._limits.too_many_sessions()
            reply = await self._keep(self._add_prompt, entry, packed(self._new_epoch()))
        if reply[1]:
            await self._enlist(reply[1], entry.session_id)
        answer = reply[0]
        if answer == b"too many pending":
            raise self._limits.too_many_pending()
        return _OUTCOMES[answer]

    async def add_response(self, entry: NewEntry) -> Outcome:
        reply = await self._keep(self._add_response, entry, packed(entry.client_msg_id, fingerprint(entry.meaning)))
        if reply[1]:
            await self._enlist(reply[1], entry.session_id)
        answer = reply[0]
        if answer == b"no session":
            raise SessionNotFound
        if answer == b"no prompt":
            raise PromptNotFound
        return _OUTCOMES[answer]

    async def pending(self, session_id: str) -> Sequence[Entry]:
        keys = self._keys(session_id)
        prompts = _found(await self._link.send(keys.meta, _PENDING.head + keys.packed_pending, _PENDING))
        return sorted([_pending_entry(prompt) for prompt in prompts], key=_by_seq) if prompts else prompts

    async def head(self, session_id: str) -> Position | None:
        meta = self._keys(session_id).meta
        epoch, seq = await self._link.command(meta, b"HMGET", meta, b"e", b"s")
        return None if epoch is None else Position(epoch.decode(), int(seq))

    async def read(self, session_id: str, after: int, *, limit: int, max_bytes: int) -> LogPage:
        keys = self._keys(session_id)
        first = min(after + 1, _BEYOND)
        reply = await self._link.run(_READ, (keys.meta, keys.log), f"{first}-0", limit, max_bytes)
        epoch, floor, entries = _found(reply)
        return LogPage(epoch.decode(), int(floor), _entries(entries))

    async def renew_epoch(self, session_id: str, epoch: str) -> None:
        meta = self._keys(session_id).meta
        if not await self._link.run(_RENEW_EPOCH, (meta,), epoch, self._new_epoch()):
            raise SessionNotFound

    async def history(self, session_id: str, *, limit: int, offset: int, since: Number | None) -> HistoryPage:
        keys = self._keys(session_id)
        if not self._limits.history:
            _found(await self._session(session_id))
            return HistoryPage(0, [])
        after = b"" if since is None else number_text(since)
        reply = await self._link.run(_HISTORY, (keys.meta, keys.log, keys.times), limit, offset, after)
        total, entries = _found(reply)
        return HistoryPage(total, _entries(entries))

    async def session(self, session_id: str) -> SessionRecord:
        return _record(session_id, _found(await self._session(session_id)))

    async def sessions(self, *, limit: int, offset: int) -> SessionRecordPage:
        while True:
            total, names = await asyncio.gather(self._list.count(), self._list.names(offset, offset + limit - 1))
            replies = await in_turn(self._session(name.session_id) for name in names)
            listed = list(zip(names, replies, strict=True))
            gone = [name for name, reply in listed if reply is None or reply[0] != name.life]
            if not gone:
                return SessionRecordPage(total, [_record(name.session_id, reply) for name, reply in listed])
            await self._list.remove(gone)

    async def touch(self, used_ms: Mapping[str, int]) -> None:
        metas = ((self._keys(session_id).meta, at_ms) for session_id, at_ms in used_ms.items())
        await in_turn(self._link.run(_TOUCH, (meta,), at_ms) for meta, at_ms in metas)

    async def delete_session(self, session_id: str) -> None:
        keys = self._keys(session_id)
        with self._parting(session_id) as parting:
            life = _found(await self._link.run(_DELETE, keys.all, self._events.channel, parting.text))
            self._events.parted(parting)
        with suppress(StoreUnavailable):  # it is gone; its name is dropped by whoever meets it
            await self._list.remove([Name(life, session_id)])

    async def collect_idle(self, idle_since_ms: int, *, keep: Collection[str]) -> Sequence[str]:
        names = [name for name in await self._list.names(0, -1) if name.session_id not in keep]
        answers = await in_turn(self._collect(name, idle_since_ms) for name in names)
        judged = list(zip(names, answers, strict=True))
        await self._list.remove([name for name, answer in judged if answer != b"kept"])
        return [name.session_id for name, answer in judged if answer == b"deleted"]

    # How the above is done

    def _keep(self, script: Script, entry: NewEntry, more: bytes) -> Keeping:
        keys = self._keys(entry.session_id)
        call = Keeping(self._events, entry, script)
        tag, message_id, ts = b"%d" % call.tag, entry.message_id.encode(), number_text(entry.ts)
        data, now_ms = entry.data, b"%d" % entry.now_ms
        call.command = _KEEP % (
            script.head,
            keys.packed,
            self._events.packed_name,
            len(tag),
            tag,
            len(message_id),
            message_id,
            len(ts),
            ts,
            len(data),
            data,
            len(now_ms),
            now_ms,
            more,
        )
        self._link.add(keys.meta, call)
        return call

    async def _enlist(self, life: bytes, session_id: str) -> None:
        with suppress(StoreUnavailable):  # the message is kept; the next one will find this still to be done
            await self._list.add(Name(life, session_id), self._keys(session_id).meta)

    @contextmanager
    def _parting(self, session_id: str) -> Iterator[Parting]:
        """The announcement that a session is gone, if that is what happens."""
        parting = Parting(self._events, session_id)
        try:
            yield parting
        finally:
            self._events.unsaid(parting)

    def _session(self, session_id: str) -> Awaitable[Reply]:
        keys = self._keys(session_id)
        return self._link.run(_SESSION, (keys.meta, keys.log, keys.pending))

    async def _collect(self, name: Name, idle_since_ms: int) -> bytes:
        keys = self._keys(name.session_id)
        with self._parting(name.session_id) as parting:
            more = (self._events.channel, parting.text, name.life, idle_since_ms)
            reply = await self._link.run(_COLLECT, keys.all, *more)
            if reply == b"deleted":
                self._events.parted(parting)
        return bytes(reply)

    async def _fetch(self, session_id: str, seq: int) -> tuple[str, Entry] | None:
        """An entry that was announced without its data; None if it is no longer there."""
        with suppress(SessionNotFound):
            page = await self.read(session_id, seq - 1, limit=1, max_bytes=0)
            if page.entries and page.entries[0].seq == seq:
                return page.epoch, page.entries[0]
        return None


def _found(reply: Reply) -> Any:
    """What a script found; raises SessionNotFound if it found no session."""
    if reply is None:
        raise SessionNotFound
    return reply


def _entries(page: Iterable[bytes]) -> list[Entry]:
    """See page.lua."""
    part = iter(page)
    return [
        Entry(int(i[:-2]), KINDS[kind], number(ts), data)
        for i, kind, ts, data in zip(part, part, part, part, strict=True)
    ]


def _pending_entry(value: bytes) -> Entry:
    seq, ts, data = value.split(b" ", 2)
    return Entry(int(seq), MessageType.PROMPT, number(ts), data)


def _record(session_id: str, reply: Sequence[Any]) -> SessionRecord:
    _, created_ms, active_ms, messages, pending = reply
    return SessionRecord(session_id, int(created_ms), int(active_ms), messages, pending)
