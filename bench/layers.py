"""What each layer takes of the time of one prompt: `make layers`.

In one process and without a network: a connection is fed with requests, and each layer once more alone. So the sum is
less than what a server takes, whose caches are cold and whose kernel wants its share; what is compared is the layers
with one another, and one version with the next on the same machine in the same minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
from uvicorn.server import ServerState

from bench.candidates import ADMIN_TOKEN
from relay.config import LogLevel, Settings
from relay.core.relay import Relay
from relay.models import PROMPT
from relay.server.app import create_app
from relay.server.fastdoor import FastDoor
from relay.server.inbox import Inbox
from relay.server.run import _uvicorn_config
from relay.store.base import KEPT, NewEntry
from relay.wire import NewPrompt, decode_prompt, encode_message

REQUESTS = 20_000
ROUNDS = 5
SESSIONS = 64
TEXT = "x" * 150
CONNECTIONS = 10
"""So many requests come in one turn of the event loop of a server that has much to do."""


class Nowhere(asyncio.Transport):
    """A connection whose other end takes everything at once."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        """Gone."""

    def is_closing(self) -> bool:
        return False


def a_body(number: int) -> bytes:
    return (
        b'{"session_id":"s%d","client_msg_id":"1234567890-%d-00000000","prompt":"%b","metadata":{"model":"m1","lang":"en"}}'
        % (number % SESSIONS, number, TEXT.encode())
    )


def a_request(body: bytes) -> bytes:
    return (
        b"POST /prompt HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (ADMIN_TOKEN.encode(), len(body), body)
    )


def serve(doors: Sequence[FastDoor], requests: Sequence[bytes]) -> None:
    """Requests of one turn, from their bytes to those of their answers."""
    for door, request in zip(doors, requests, strict=False):
        door.data_received(request)
    inbox: Inbox = doors[0]._inbox
    inbox.serve_all()


def reply(door: FastDoor, answer: bytes) -> None:
    """The last part of it."""
    door._unsent = door._heads.usual(answer, door.server_state.default_headers)
    door._outbox.add_asked(door)
    door.write_now()


class Layers:
    """A relay in this process, and the parts of it that a prompt goes through."""

    def __init__(self, doors: Sequence[FastDoor], first: int, count: int) -> None:
        door = doors[0]
        self._count = count
        numbers = range(first, first + count)
        bodies = [a_body(number) for number in numbers]
        again = [decode_prompt(a_body(-1 - number)) for number in numbers]  # the store takes an id only once
        endpoint: Any = door._door._exact["POST", "/prompt"].endpoint
        relay: Relay = endpoint.__self__._relay
        store: Any = relay._store
        entries = [entry_of(prompt) for prompt in again]
        answer = b'{"stored":true,"client_msg_id":"1234567890-12345-00000000"}'
        requests = [a_request(body) for body in bodies]
        turns = [requests[start : start + len(doors)] for start in range(0, count, len(doors))]
        self.acts: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
            "all": (lambda turn: serve(doors, turn), turns),
            "find the head": (door._known.find, requests),
            "decode and check": (decode_prompt, bodies),
            "encode": (encode_message, again),
            "keep": (store.add_prompt, entries),
            "log and count": (
                lambda new: relay._observer.prompt_stored(new.session_id, new.message_id, 300, KEPT),
                entries,
            ),
            "answer": (lambda _: reply(door, answer), bodies),
        }

    def microseconds(self) -> dict[str, float]:
        """What each took, for one prompt."""
        taken = {}
        for name, (act, subjects) in self.acts.items():
            began = time.process_time()
            for subject in subjects:
                act(subject)
            taken[name] = (time.process_time() - began) / self._count * 1e6
        taken["the rest"] = 2 * taken["all"] - sum(taken.values())
        return taken


def entry_of(prompt: NewPrompt) -> NewEntry:
    assert prompt.client_msg_id is not None
    prompt.ts = 1
    return NewEntry(prompt.session_id, PROMPT, prompt.client_msg_id, prompt.client_msg_id, 1, encode_message(prompt), 1)


async def measure(requests: int, rounds: int, *, log_level: LogLevel = LogLevel.INFO) -> dict[str, float]:
    """The best of some rounds, by layer."""
    settings = Settings(
        admin_token=ADMIN_TOKEN,
        rate_limit=0,
        max_pending_per_session=10**9,
        store_max_bytes=10**12,
        log_level=log_level,
    )
    app = create_app(settings)
    config = _uvicorn_config(app, settings)
    config.load()
    async with app.router.lifespan_context(app) as state:
        server = ServerState()
        doors = [FastDoor(config, server, dict(state or {})) for _ in range(CONNECTIONS)]
        for door in doors:
            door.connection_made(Nowhere())
        for number in range(3):  # the heads are known from then on
            serve(doors, [a_request(a_body(number))] * CONNECTIONS)
        found: list[dict[str, float]] = []
        for number in range(rounds):
            found.append(Layers(doors, 10 + number * requests, requests).microseconds())
            await asyncio.sleep(0)
    return min(found, key=lambda taken: taken["all"])


def main() -> None:
    """Print the table."""
    uvloop.install()
    for name, microseconds in asyncio.run(measure(REQUESTS, ROUNDS)).items():
        print(f"{name:<18}{microseconds:6.1f} µs")


if __name__ == "__main__":
    main()
