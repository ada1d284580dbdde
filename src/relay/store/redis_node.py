"""One server: the calls of one moment are sent together, and those that cannot be done here are sent elsewhere.

Everything that writes goes over one connection: its replies come in the order in which Redis has done it, which is
that of the logs. What only looks has others, as its replies may be large: if one is held up, the next one is used.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from relay.store.redis_call import Call, fail_all, ignored
from relay.store.redis_lane import ConfirmedLane, Connect, Lane

MAX_CONNECTIONS = 8
"""Redis works on one command at a time, so two would do if no reply were large."""

MAX_QUEUED = 20_000
"""Calls under way on a connection, or waiting for it; more than that means that Redis does not keep up."""


class Switch(Protocol):
    """Who knows the other servers, if there are any."""

    def again(self, node: Node, call: Call, refusal: ResponseError) -> bool:
        """Send a call elsewhere that `node` has refused; False if there is nowhere else."""

    def broken(self, node: Node) -> None:
        """Calls to this node have failed."""


class Node:
    """A server's connections, made when they are needed, and the calls that wait for one. `host` is its name."""

    def __init__(self, connect: Connect, host: str, wait_replicas: int, switch: Switch) -> None:
        self.host = host
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._switch = switch
        self._writes: list[Call] = []
        self._looks: list[Call] = []
        self._scheduled = False
        self._closed = False
        self._writing = ConfirmedLane(self, connect, wait_replicas) if wait_replicas else Lane(self, connect)
        self._looking = [Lane(self, connect)]

    def add(self, call: Call) -> None:
        """Send the call at the end of this tick."""
        calls = self._writes if call.script is not None and call.script.writes else self._looks
        if self._closed or len(calls) >= MAX_QUEUED:
            call.fail(RedisError("closed" if self._closed else f"{MAX_QUEUED} calls wait already"))
            return
        if call.asking:
            calls.append(ignored(b"ASKING"))
        calls.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits and may go."""
        self._scheduled = False
        if self._writes and self._writing.is_free:
            calls, self._writes = self._writes, []
            _send(self._writing, calls)
        if self._looks:
            calls, self._looks = self._looks, []
            _send(self._free_lane(), calls)

    async def close(self) -> None:
        """Let go of the connections; calls under way fail."""
        self._closed = True
        fail_all((*self._writes, *self._looks), RedisError("closed"))
        self._writes, self._looks = [], []
        await asyncio.gather(*(lane.close() for lane in (self._writing, *self._looking)))

    def refused(self, call: Call, refusal: ResponseError) -> None:
        """See whether the call can still be done, else tell whoever waits for it."""
        if isinstance(refusal, NoScriptError) and call.send_source():
            self.add(call)
        elif not self._switch.again(self, call, refusal):
            call.fail(refusal)
        if isinstance(refusal, ReadOnlyError):
            # This was a master once. Every connection is made anew, wherever the name now leads.
            for lane in (self._writing, *self._looking):
                lane.give_up(refusal)

    def broken(self) -> None:
        """Calls have failed: tell whoever knows the other servers."""
        self._switch.broken(self)

    def _free_lane(self) -> Lane:
        now = self._loop.time()
        for lane in self._looking:
            if not lane.is_held_up(now):
                return lane
        if len(self._looking) < MAX_CONNECTIONS - 1:
            self._looking.append(Lane(self, self._connect))
        return self._looking[-1]


def _send(lane: Lane, calls: list[Call]) -> None:
    if lane.under_way >= MAX_QUEUED:
        fail_all(calls, RedisError(f"{MAX_QUEUED} calls wait already"))
    else:
        lane.send(calls)
