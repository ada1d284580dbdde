"""server/peers.py: the sweep and its arithmetic. What it does to real peers is in test_slow_peers.py."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from relay.config import Settings
from relay.server.peers import CALM_SWEEPS, LOOKS_PER_TURN, Peers, Unread
from relay.server.telemetry import Telemetry
from tests.factories import some_settings


@pytest.fixture
def open_files() -> Iterator[int]:
    """The process may open 1,000 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, before[1]))
    yield 1_000
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def some_peers(settings: Settings | None = None) -> Peers:
    settings = settings or some_settings()
    return Peers(settings, Telemetry(settings))


@pytest.mark.parametrize(("wanted", "bound"), [(20_000, 900), (500, 500)])
def test_there_are_never_more_connections_than_files_less_a_reserve(open_files: int, wanted: int, bound: int) -> None:
    peers = some_peers(some_settings(max_connections=wanted))
    assert peers.max_connections == bound
    assert peers.max_connections + peers.max_leaving < open_files


def test_the_sweep_keeps_pace_with_the_shortest_time_out() -> None:
    assert some_peers().sweep_seconds == 1.0
    assert some_peers(some_settings(header_timeout_seconds=0.4)).sweep_seconds == pytest.approx(0.1)


class Looked:
    """A connection that counts how often it is looked at."""

    looks = 0
    broken = False

    def look(self, now: float) -> None:
        self.looks += 1
        if self.broken:
            raise ValueError


async def test_a_sweep_looks_at_all_and_lets_others_have_a_turn() -> None:
    peers = some_peers()
    connections = [Looked() for _ in range(3 * LOOKS_PER_TURN)]
    connections[0].broken = True
    peers.connections = set(connections)
    sweep = asyncio.create_task(peers.sweep())
    turns = 0
    while not sweep.done():
        await asyncio.sleep(0)
        turns += 1
    assert {connection.looks for connection in connections} == {1}
    assert turns >= 3


async def test_who_is_calm_is_looked_at_now_and_then() -> None:
    peers = some_peers()
    calm, gone, other = Looked(), Looked(), Looked()
    peers.connections, peers.calm = {calm, other}, {calm, gone}
    for _ in range(3 * CALM_SWEEPS):
        await peers.sweep()
    assert (calm.looks, gone.looks, other.looks) == (3, 0, 3 * CALM_SWEEPS)


class Transport:
    """A transport with so much that the peer has not read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.socket = socket.socket()

    def get_write_buffer_size(self) -> int:
        return self.size

    def get_extra_info(self, name: str) -> object:
        return getattr(self, name)


def test_a_peer_is_waited_for_as_long_as_it_reads_anything() -> None:
    fake = Transport(100)
    transport = cast(asyncio.Transport, fake)
    unread = Unread()
    assert [unread.seconds(transport, now) for now in (1.0, 2.0, 3.0)] == [0.0, 1.0, 2.0]
    fake.size = 90
    assert [unread.seconds(transport, now) for now in (4.0, 5.0)] == [0.0, 1.0]
    unread.moved()  # as much was read as was written since
    assert [unread.seconds(transport, now) for now in (6.0, 7.0)] == [0.0, 1.0]
    fake.size = 0
    assert unread.seconds(transport, 8.0) == 0.0
    fake.socket.close()
