"""The HTTP endpoints. Each reads its request, calls the relay once and answers; the rules are elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from relay.config import Settings
from relay.core.hub import Hub
from relay.core.relay import Posted, Relay
from relay.errors import Draining, UnsupportedContentType, UpgradeRequired
from relay.models import MetadataBounds, Session
from relay.server.auth import ADMINS, ADMINS_EVERYWHERE, AGENTS, ANY_ROLE, CLIENTS, FREE
from relay.server.guard import TICKET_SECONDS, Guard
from relay.server.http import JSON, PIECE_BYTES, Answer, LaterReply, Reply, Request, Route, in_parts
from relay.server.query import Query
from relay.server.telemetry import METRICS_CONTENT_TYPE, Telemetry
from relay.store.base import Entry
from relay.wire import decode_prompt, decode_response, decode_ticket, encode, history_item

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS = 30
MAX_TIMEOUT_SECONDS = 300
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000

MAX_REMEMBERED_BYTES = 100
"""Longer queries are read each time: what strangers send must not fill the memory."""


class Rest:
    """Every endpoint, and the table of where each is found."""

    def __init__(
        self,
        relay: Relay,
        hub: Hub,
        guard: Guard,
        settings: Settings,
        telemetry: Telemetry,
        now_ms: Callable[[], int],
    ) -> None:
        self._relay = relay
        self._guard = guard
        self._hub = hub
        self._settings = settings
        self._telemetry = telemetry
        self._now_ms = now_ms
        self._bounds = MetadataBounds(settings.max_metadata_bytes, settings.max_metadata_depth)

    def routes(self) -> list[Route]:
        """The endpoints by method and path."""
        most = self._settings.max_body_bytes
        # First answers, then prompts, then polls: one that comes at the same moment as its prompt need not wait for it,
        # and does not get the one that has just been answered.
        return [
            Route("POST", "/prompt", self.post_prompt, CLIENTS, most, rank=1),
            Route("GET", "/prompts/{session_id}", self.get_prompts, AGENTS, rank=2),
            Route("POST", "/response", self.post_response, AGENTS, most, rank=0),
            Route("GET", "/messages/{session_id}", self.get_messages, ANY_ROLE),
            Route("POST", "/ticket", self.post_ticket, CLIENTS, most),
            Route("GET", "/sessions", self.get_sessions, ADMINS_EVERYWHERE),
            Route("GET", "/sessions/{session_id}", self.get_session, ADMINS),
            Route("DELETE", "/sessions/{session_id}", self.delete_session, ADMINS),
            Route("GET", "/healthz", self.healthz, FREE),
            Route("GET", "/livez", self.livez, ANY_ROLE),
            Route("GET", "/readyz", self.readyz, ANY_ROLE),
            Route("GET", "/metrics", self.metrics, ADMINS_EVERYWHERE),
            Route("GET", "/ws", self.plain_websocket, CLIENTS),
            Route("GET", "/ws/", self.plain_websocket, CLIENTS),
            Route("GET", "/ws/{session_id}", self.plain_websocket, CLIENTS),
        ]

    def post_prompt(self, request: Request) -> Reply | LaterReply:
        """A client submits a prompt."""
        if (content_type := request.headers.get(b"content-type")) != JSON:
            _require_json(content_type)
        prompt = decode_prompt(request.content, self._bounds)
        request.caller.require_session(prompt.session_id)
        submitted = self._relay.submit_prompt(prompt)
        return _stored(submitted) if isinstance(submitted, str) else _later(submitted, _stored)

    async def get_prompts(self, request: Request) -> Reply:
        """An agent fetches the prompts that have no response yet, and waits for one if asked to."""
        query = request.query
        wait, timeout_seconds = _poll(query) if len(query) <= MAX_REMEMBERED_BYTES else _poll.__wrapped__(query)
        if wait:
            if request.caller.expires is not None:  # a poll does not outlast its token
                timeout_seconds = min(timeout_seconds, max(0.0, request.caller.expires - self._now_ms() / 1000))
            prompts = await self._relay.wait_pending(
                request.session_id, timeout_seconds, request.when_gone, by_hand=request.by_hand
            )
        else:
            prompts = await self._relay.pending(request.session_id)
        return _prompts(prompts)

    def post_response(self, request: Request) -> Reply | LaterReply:
        """An agent answers a prompt."""
        if (content_type := request.headers.get(b"content-type")) != JSON:
            _require_json(content_type)
        response = decode_response(request.content, self._bounds)
        request.caller.require_session(response.session_id)
        posted = self._relay.post_response(response)
        return _accepted(posted) if isinstance(posted, Posted) else _later(posted, _accepted)

    async def get_messages(self, request: Request) -> Reply:
        """The history of a session."""
        query = Query(request.query)
        limit, offset = _page(query)
        since = query.number("since")
        page = await self._relay.history(request.session_id, limit=limit, offset=offset, since=since)
        return in_parts(
            [
                b'{"session_id":%b,"messages":' % encode(request.session_id),
                *_array([history_item(entry.kind, entry.data) for entry in page.entries]),
                b',"total":%d,"limit":%d,"offset":%d}' % (page.total, limit, offset),
            ]
        )

    async def post_ticket(self, request: Request) -> Reply:
        """A client that can set no header gets a ticket for one WebSocket."""
        if request.content:
            _require_json(request.headers.get(b"content-type"))
        session_id = decode_ticket(request.content) if request.content else None
        ticket = await self._guard.make_ticket(request.caller, session_id)
        return b'{"ticket":%b,"expires_in":%d}' % (encode(ticket), TICKET_SECONDS)

    async def get_sessions(self, request: Request) -> Reply:
        """Every session, in pages."""
        limit, offset = _page(Query(request.query))
        total, sessions = await self._relay.sessions(limit=limit, offset=offset)
        listed = b",".join(map(_session, sessions))
        return b'{"sessions":[%b],"total":%d,"limit":%d,"offset":%d}' % (listed, total, limit, offset)

    async def get_session(self, request: Request) -> Reply:
        """One session and who listens to it."""
        return _session(await self._relay.session(request.session_id))

    async def delete_session(self, request: Request) -> Reply:
        """Forget a session and everything in it."""
        await self._relay.delete_session(request.session_id)
        return b'{"deleted":true}'

    async def healthz(self, request: Request) -> Reply:
        """Whether the server can do its job: 503 while its store cannot keep anything."""
        await self._relay.check()
        return self._ok()

    async def livez(self, request: Request) -> Reply:
        """Whether the process lives; nothing else is looked at."""
        return self._ok()

    async def readyz(self, request: Request) -> Reply:
        """Whether to send traffic here: healthy, and not about to stop."""
        if self._hub.draining:
            raise Draining
        return await self.healthz(request)

    async def metrics(self, request: Request) -> Reply:
        """Counters for Prometheus."""
        return Answer(200, self._telemetry.exposition(), METRICS_CONTENT_TYPE)

    async def plain_websocket(self, request: Request) -> Reply:
        """A WebSocket path that was asked for as an ordinary page."""
        raise UpgradeRequired("connect with a WebSocket client to /ws/{session_id}")

    def _ok(self) -> bytes:
        return b'{"ok":true,"timestamp":%d}' % self._now_ms()


def _stored(client_msg_id: str) -> bytes:
    return b'{"stored":true,"client_msg_id":' + encode(client_msg_id) + b"}"


def _accepted(posted: Posted) -> bytes:
    return b'{"ok":true,"assistant_msg_id":%b,"delivered":true,"recipients":%d}' % (
        encode(posted.assistant_msg_id),
        posted.recipients,
    )


async def _later(result: Awaitable[T], answer: Callable[[T], bytes]) -> Reply:
    return answer(await result)


def _require_json(content_type: bytes | None) -> None:
    if not _is_json(content_type):
        raise UnsupportedContentType("send the header Content-Type: application/json")


def _is_json(content_type: bytes | None) -> bool:
    media, *parameters = (content_type or b"").lower().split(b";")
    pairs = [parameter.partition(b"=") for parameter in parameters]
    charsets = [value.strip(b' \t"') for name, _, value in pairs if name.strip(b" \t") == b"charset"]
    return media.strip(b" \t") == JSON and charsets in ([], [b"utf-8"])


@lru_cache(1024)
def _poll(raw: bytes) -> tuple[bool, float]:
    """Whether to wait and how long; an agent asks the same again and again."""
    query = Query(raw)
    wait = query.boolean("wait", default=True)
    timeout_seconds = query.number("timeout", least=0, most=MAX_TIMEOUT_SECONDS)
    return wait, DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds


def _page(query: Query) -> tuple[int, int]:
    return query.integer("limit", default=DEFAULT_LIMIT, least=1, most=MAX_LIMIT), query.integer(
        "offset", default=0, least=0
    )


def _prompts(prompts: Sequence[Entry]) -> Reply:
    if len(prompts) == 1 and len(prompts[0].data) < PIECE_BYTES:  # what an agent that waits gets, most often
        return b"[" + prompts[0].data + b"]"
    return in_parts(_array([(prompt.data,) for prompt in prompts]))


def _array(items: Iterable[tuple[bytes, ...]]) -> list[bytes]:
    """A JSON array of items that are given in parts; nothing is copied."""
    parts = [b"["]
    for item in items:
        parts += item
        parts.append(b",")
    parts[-1:] = [b"]"] if len(parts) > 1 else [b"[]"]
    return parts


def _session(session: Session) -> bytes:
    return session.model_dump_json().encode()
