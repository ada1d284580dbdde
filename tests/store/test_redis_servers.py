"""Redis servers that go and come: restarts, replicas, sentinels, a cluster."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from redis.crc import key_slot

from relay.errors import StoreUnavailable
from relay.store.base import Outcome
from tests.factories import Listening, a_prompt, a_response
from tests.store.redis_server import RedisServer, cluster, cluster_url, replica_of, replicated
from tests.store.redis_waits import Connect, refused, until, until_healthy

# The server goes and comes


async def test_a_restart_of_the_server_is_survived(server: RedisServer, connect: Connect) -> None:
    here = Listening()
    store = await connect(here)
    await store.add_prompt(a_prompt("p1"))
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.add_prompt(a_prompt("p2"))
    with pytest.raises(StoreUnavailable):
        await store.check()
    server.start()
    await until_healthy(store, 3.0)
    assert here.lost >= 1
    assert await store.add_prompt(a_prompt("p1")) is Outcome.DUPLICATE
    assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]


async def test_a_replica_takes_no_writes_and_nothing_is_half_done(
    server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("REPLICAOF", "127.0.0.1", "1")
    await refused(lambda: store.add_prompt(a_prompt("p2")), lambda: store.delete_session("s1"), store.check)
    server.ask("REPLICAOF", "NO", "ONE")
    await until_healthy(store)
    assert [entry.seq for entry in await store.pending("s1")] == [1]


async def test_a_full_server_refuses_and_changes_nothing(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("CONFIG SET", "maxmemory", "1mb")
    server.ask("CONFIG SET", "maxmemory-policy", "noeviction")
    await refused(
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt("p1", session_id="s2")),
        lambda: store.add_response(a_response("a1")),
        store.check,
    )
    assert await store.head("s2") is None
    assert len(await store.pending("s1")) == 1
    server.ask("CONFIG SET", "maxmemory", "0")
    assert await store.add_response(a_response("a1")) is Outcome.KEPT


async def test_without_a_replica_to_confirm_it_a_write_is_not_acknowledged(connect: Connect) -> None:
    here = Listening()
    store = await connect(here, wait_replicas=1)
    await (await connect()).add_prompt(a_prompt("p1"))
    await refused(
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt("p2")),
        lambda: store.add_prompt(a_prompt(session_id="new")),
        store.check,
    )
    # It stands nevertheless. Whoever reads the log sees it, so whoever listens is told, once.
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]
    assert [seq for _, _, seq in here.heard] == [1, 2]


async def test_a_replica_that_stops_confirming_is_noticed_for_duplicates_too(
    server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    replica = replica_of(server, tmp_path / "replica")
    try:
        store, other = await connect(wait_replicas=1), await connect(wait_replicas=1)
        assert await store.add_prompt(a_prompt("p1")) is Outcome.KEPT
        assert await store.add_response(a_response("a1")) is Outcome.KEPT
        replica.process.send_signal(signal.SIGSTOP)
        await refused(
            lambda: store.add_prompt(a_prompt("p2")),
            lambda: other.add_prompt(a_prompt("p2")),  # on a connection that has written nothing yet
            lambda: other.add_response(a_response("a1")),
        )
        replica.process.send_signal(signal.SIGCONT)
        assert await other.add_prompt(a_prompt("p2")) is Outcome.DUPLICATE
    finally:
        replica.process.send_signal(signal.SIGCONT)
        replica.stop()


async def test_sentinels_lead_to_the_new_master(tmp_path: Path, connect: Connect) -> None:
    with replicated(tmp_path) as servers:
        here = Listening()
        careful, store = await connect(url=servers.url, wait_replicas=1), await connect(here, url=servers.url)
        assert await careful.add_prompt(a_prompt("p1")) is Outcome.KEPT
        servers.master.kill()
        await until_healthy(store, 15)
        assert [entry.seq for entry in await store.pending("s1")] == [1]
        assert await store.add_prompt(a_prompt("p2")) is Outcome.KEPT
        assert [seq for _, _, seq in here.heard] == [1, 2]
        assert here.lost >= 1


# A cluster


async def test_a_cluster_keeps_sessions_on_all_its_servers(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        here, there = Listening(), Listening()
        one, other = await connect(here, url=cluster_url(nodes)), await connect(there, url=cluster_url(nodes[:1]))
        sessions = [f"s{n}" for n in range(60)]
        await asyncio.gather(*(one.add_prompt(a_prompt(session_id=sid, prompt="x" * 20_000)) for sid in sessions))
        await asyncio.gather(*(other.add_response(a_response(session_id=sid)) for sid in sessions))
        await until(lambda: len(here.heard) == len(there.heard) == 120, 15)
        assert sorted(here.heard) == sorted(there.heard)
        assert (await other.sessions(limit=100, offset=0)).total == 60
        await other.check()
        for node in nodes:
            assert node.ask("DBSIZE") >= 5


async def test_a_slot_that_moves_to_another_server_is_followed(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        one, other = await connect(url=cluster_url(nodes)), await connect(url=cluster_url(nodes))
        await one.add_prompt(a_prompt("p1"))
        assert len(await other.pending("s1")) == 1
        slot = key_slot(b"relay:{s1}:meta")
        ids = {node.port: node.ask("CLUSTER MYID").decode() for node in nodes}
        source = next(node for node in nodes if node.ask("CLUSTER COUNTKEYSINSLOT", slot))
        target = next(node for node in nodes if node is not source)
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[source.port])
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.port])
        keys = source.ask("CLUSTER GETKEYSINSLOT", slot, 100)
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        assert await one.add_prompt(a_prompt("p2")) is Outcome.KEPT  # the way to the target has to be asked for
        for node in (target, source):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[target.port])
        assert await one.add_prompt(a_prompt("p3")) is Outcome.KEPT
        assert [entry.seq for entry in await other.pending("s1")] == [1, 2, 3]


async def test_a_cluster_with_a_server_down_recovers_with_it(tmp_path: Path, connect: Connect) -> None:
    with cluster(tmp_path) as nodes:
        store = await connect(url=cluster_url(nodes))
        await asyncio.gather(*(store.add_prompt(a_prompt(session_id=f"s{n}")) for n in range(20)))
        nodes[0].kill()
        await refused(store.check, lambda: store.touch({f"s{n}": 5 for n in range(20)}))
        nodes[0].start()
        await until_healthy(store, 10)
