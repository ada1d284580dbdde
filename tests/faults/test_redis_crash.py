"""Relays and Redis are killed under load: nothing acknowledged is lost, and whoever listens misses nothing."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from websockets.sync.client import connect

from tests.faults.load import ROOM, Ledger, acknowledged, writing
from tests.protocol.talk import Talk, wait_until
from tests.serving import Server, running
from tests.store.redis_server import RedisServer, replicated

ROUNDS = int(os.environ.get("RELAY_SOAK_ROUNDS", "10"))
# With everysec, Redis replies before it writes to its file, for up to two seconds, while the disk is busy.
AOF = ("--appendonly", "yes", "--appendfsync", "always")


class Listener(threading.Thread):
    """A client that stays connected and remembers every answer that it got."""

    def __init__(self, url: str, session_id: str) -> None:
        super().__init__(daemon=True)
        self.ids: list[str] = []
        self.connections = 0
        self._url = f"{url.replace('http', 'ws', 1)}/ws/{session_id}"
        self._stopped = threading.Event()
        self.failure: BaseException | None = None
        self.start()
        wait_until(lambda: self.connections == 1)

    def run(self) -> None:
        try:
            with connect(self._url, max_size=None) as client:
                self.connections += 1
                while not self._stopped.is_set():
                    try:
                        frame = json.loads(client.recv(timeout=0.1))
                    except TimeoutError:
                        continue
                    if frame["type"] == "message":
                        self.ids.append(frame["data"]["assistant_msg_id"])
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        self._stopped.set()
        self.join(10)
        if self.failure is not None:
            raise self.failure


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options)
    try:
        yield server
    finally:
        server.stop()


def check(urls: list[str], ledgers: list[Ledger]) -> None:
    """Every instance tells the same, and it is what was acknowledged."""
    for url in urls:
        with httpx.Client(base_url=url, timeout=20) as http:
            for ledger in ledgers:
                ledger.check(http)


def settle(url: str, ledgers: list[Ledger]) -> None:
    with httpx.Client(base_url=url, timeout=20) as http:
        for ledger in ledgers:
            ledger.settle(http)


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_kill_9_of_the_relay_under_eight_writers_loses_nothing_acknowledged(tmp_path: Path) -> None:
    ledgers = [Ledger(f"s{n}") for n in range(8)]
    moments = random.Random(2)
    with redis_server(tmp_path, *AOF) as redis:
        for _ in range(ROUNDS):
            with running("serve", store_url=redis.url, **ROOM) as server:
                check([server.url], ledgers)
                settle(server.url, ledgers)
                check([server.url], ledgers)
                goal = acknowledged(ledgers) + 50
                with writing([server.url], ledgers):
                    wait_until(lambda goal=goal: acknowledged(ledgers) > goal)  # type: ignore[misc]
                    time.sleep(moments.uniform(0, 0.3))
                    server.process.kill()
                    server.process.wait()


def healthy(server: Server) -> bool:
    return httpx.get(f"{server.url}/healthz", timeout=5).status_code == 200


@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_kill_9_and_restart_of_redis_under_load(tmp_path: Path) -> None:
    ledgers = [Ledger(f"s{n}") for n in range(8)]
    with redis_server(tmp_path, *AOF) as redis, running("serve", store_url=redis.url, **ROOM) as server:
        listeners = [Listener(server.url, ledger.session_id) for ledger in ledgers]
        with writing([server.url], ledgers):
            for _ in range(max(2, ROUNDS // 5)):
                goal = acknowledged(ledgers) + 100
                wait_until(lambda goal=goal: acknowledged(ledgers) > goal)  # type: ignore[misc]
                refused = sum(ledger.refused for ledger in ledgers)
                redis.kill()
                wait_until(lambda: not healthy(server))
                wait_until(lambda refused=refused: sum(x.refused for x in ledgers) > refused)  # type: ignore[misc]
                redis.start()
                back = time.monotonic()
                goal = acknowledged(ledgers) + 8
                wait_until(lambda goal=goal: acknowledged(ledgers) > goal)  # type: ignore[misc]
                wait_until(lambda: healthy(server))
                assert time.monotonic() - back < 3, "the service did not resume by itself in time"
        check([server.url], ledgers)
        settle(server.url, ledgers)
        for ledger, listener in zip(ledgers, listeners, strict=True):
            wait_until(lambda a=ledger, b=listener: set(a.answers) <= set(b.ids))  # type: ignore[misc]
            listener.stop()
            assert listener.connections == 1, "it had to connect again"
            assert set(listener.ids) == set(ledger.answers)
        assert not [line for line in server.lines if "Traceback" in line]


def test_two_instances_wake_and_tell_each_other(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as redis,
        running("serve", store_url=redis.url) as a,
        running("serve", store_url=redis.url) as b,
        httpx.Client(base_url=a.url, timeout=20) as http_a,
        httpx.Client(base_url=b.url, timeout=20) as http_b,
    ):
        on_a, on_b = Talk(http_a, "s1"), Talk(http_b, "s1")
        on_a.respond(on_a.prompt())
        began = time.monotonic()
        for _ in range(20):
            poll: list[list[str]] = []
            waiting = threading.Thread(
                target=lambda poll=poll: poll.append(
                    [p["client_msg_id"] for p in on_b.pending(wait="true", timeout=30)]
                )
            )
            waiting.start()
            wait_until(lambda: _session(b)["waiting_agents"] == 1)
            client_msg_id = on_a.prompt()
            waiting.join(10)
            assert poll == [[client_msg_id]]
            on_b.respond(client_msg_id)
        assert time.monotonic() - began < 14, "a poll on B slept until its safety read"
        listeners = [Listener(url, "s1") for url in (a.url, a.url, b.url, b.url)]
        client_msg_id = on_a.prompt()
        ids = [(on_a, on_b)[n % 2].respond(client_msg_id, f"answer {n}") for n in range(200)]
        for listener in listeners:
            wait_until(lambda listener=listener: len(listener.ids) == 200)  # type: ignore[misc]
            listener.stop()
            assert listener.ids == ids, "every client has the same order"


def _session(server: Server) -> dict[str, int]:
    return dict(httpx.get(f"{server.url}/sessions/s1", timeout=10).json())


def test_answers_reach_every_client_while_pubsub_connections_are_killed(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as redis,
        running("serve", store_url=redis.url) as a,
        running("serve", store_url=redis.url) as b,
        httpx.Client(base_url=b.url, timeout=20) as http_b,
    ):
        on_b = Talk(http_b, "s1")
        client_msg_id = on_b.prompt()
        listeners = [Listener(url, "s1") for url in (a.url, b.url)]
        done = threading.Event()

        def cut() -> None:
            while not done.wait(0.2):
                redis.ask("CLIENT", "KILL", "TYPE", "pubsub")

        cutting = threading.Thread(target=cut)
        cutting.start()
        ids = [on_b.respond(client_msg_id, f"answer {n}") for n in range(1000)]
        done.set()
        cutting.join()
        for listener in listeners:
            wait_until(lambda listener=listener: len(listener.ids) >= 1000, 30)  # type: ignore[misc]
            listener.stop()
            assert listener.ids == ids


def test_kill_9_of_one_instance_loses_nothing_and_the_other_serves_on(tmp_path: Path) -> None:
    ledgers = [Ledger(f"s{n}") for n in range(8)]
    with redis_server(tmp_path) as redis, running("serve", store_url=redis.url) as b:
        listeners = [Listener(b.url, ledger.session_id) for ledger in ledgers]
        with running("serve", store_url=redis.url) as a, writing([a.url, b.url], ledgers):
            wait_until(lambda: acknowledged(ledgers) > 200)
            a.process.kill()
            a.process.wait()
            goal = acknowledged(ledgers) + 200
            wait_until(lambda: acknowledged(ledgers) > goal)
        check([b.url], ledgers)
        settle(b.url, ledgers)
        check([b.url], ledgers)
        for ledger, listener in zip(ledgers, listeners, strict=True):
            wait_until(lambda a=ledger, b=listener: set(a.answers) <= set(b.ids))  # type: ignore[misc]
            listener.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("wait_replicas", [0, 1])
def test_a_sentinel_failover(tmp_path: Path, wait_replicas: int) -> None:
    ledgers = [Ledger(f"s{n}") for n in range(4)]
    with (
        replicated(tmp_path) as redis,
        running("serve", store_url=redis.url, redis_wait_replicas=wait_replicas, **ROOM) as server,
    ):
        with writing([server.url], ledgers):
            wait_until(lambda: acknowledged(ledgers) > 100)
            redis.master.kill()
            killed = time.monotonic()
            before = acknowledged(ledgers)
            if wait_replicas == 0:
                wait_until(lambda: acknowledged(ledgers) > before + 20, 20)
                assert time.monotonic() - killed < 15
            else:
                # Nobody is left to confirm a write: it is refused, and nothing is promised.
                wait_until(lambda: redis.replica.info("replication")["role"] == "master", 20)
        if wait_replicas == 0:
            return
        wait_until(redis.has_failed_over)  # else the old master, which is empty, might stay the master
        redis.master.start()
        wait_until(
            lambda: redis.replica.info("replication").get("connected_slaves") == 1, 90
        )  # Sentinel takes its time to make the old master a replica
        wait_until(lambda: httpx.get(f"{server.url}/healthz", timeout=5).status_code == 200)
        check([server.url], ledgers)
        settle(server.url, ledgers)
        check([server.url], ledgers)


def test_a_redis_that_comes_back_with_less_gives_the_log_a_new_epoch_and_nothing_new_is_missed(tmp_path: Path) -> None:
    """What a failover to a replica that lagged behind does: the end of the log is gone, its numbers are used again."""
    with (
        redis_server(tmp_path) as redis,
        running("serve", store_url=redis.url) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        talk = Talk(http, "s1")
        client_msg_id = talk.prompt()
        listener = Listener(server.url, "s1")
        kept = [talk.respond(client_msg_id, f"kept {n}") for n in range(5)]
        redis.ask("SAVE")
        epoch = redis.ask("HGET", "relay:{s1}:meta", "e")
        lost = [talk.respond(client_msg_id, f"lost {n}") for n in range(5)]
        wait_until(lambda: listener.ids == kept + lost)
        redis.restart()
        wait_until(lambda: talk.post_prompt(client_msg_id="after").status_code == 200)
        new = [talk.respond("after", f"new {n}") for n in range(8)]
        wait_until(lambda: set(new) <= set(listener.ids))
        listener.stop()
        assert listener.connections == 1
        assert redis.ask("HGET", "relay:{s1}:meta", "e") != epoch
        assert [m["data"].get("assistant_msg_id") for m in talk.messages()["messages"]][1:6] == kept
        arrived = listener.ids[10:]
        assert [answer for answer in arrived if answer in new] == new, "each once and in order"
        assert set(arrived) <= {*kept, *new}
