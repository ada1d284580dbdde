"""What is Redis's own: the way there, the sessions and their list, the start."""

from __future__ import annotations

import asyncio
import random
import signal

import msgspec
import pytest
from redis.crc import key_slot

from relay.errors import StartupError, StoreUnavailable
from relay.models import ASSISTANT
from relay.store import redis_connection, redis_lane, redis_link, redis_node
from relay.store.base import Outcome
from relay.store.redis import RedisStore
from relay.store.redis_url import parse_redis_url
from tests.factories import GENEROUS, Listening, a_prompt, a_response
from tests.store.redis_server import RedisServer
from tests.store.redis_waits import Connect, until

# Scripts and pipelines


async def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.ask("SCRIPT FLUSH")
    outcomes = await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(1, 20)))
    assert outcomes == [Outcome.DUPLICATE] + [Outcome.KEPT] * 18
    assert len(await store.pending("s1")) == 19


async def test_calls_of_one_tick_travel_together(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p0"))
    before = server.info("stats")
    await asyncio.gather(*(store.add_prompt(a_prompt(f"p{n}")) for n in range(1, 101)))
    after = server.info("stats")
    assert after["total_commands_processed"] - before["total_commands_processed"] >= 100
    # Redis reads at most 16 KiB at a time; one read is that of INFO itself.
    size = sum(len(a_prompt(f"p{n}").data) + 1000 for n in range(1, 101))
    assert after["total_reads_processed"] - before["total_reads_processed"] <= size / 16384 + 3


async def test_calls_gather_while_every_connection_is_busy(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p0"))
    server.ask("CLIENT PAUSE", 200)
    polls = [asyncio.create_task(store.head("s1")) for _ in range(50)]
    for _ in range(20):
        await asyncio.sleep(0)
        polls += [asyncio.create_task(store.head("s1")) for _ in range(50)]
    assert {head.seq for head in await asyncio.gather(*polls)} == {1}
    assert len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_what_only_looks_goes_round_a_connection_that_is_held_up(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    monkeypatch.setattr(redis_lane, "HELD_UP_SECONDS", -1.0)
    server.ask("CLIENT PAUSE", 200)
    polls = []
    for _ in range(100):
        polls.append(asyncio.create_task(store.pending("s1")))
        await asyncio.sleep(0)
    assert {len(prompts) for prompts in await asyncio.gather(*polls)} == {1}
    assert 3 < len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_a_cancelled_call_never_leaves_its_reply_to_another(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    sessions = [f"session-{n}" for n in range(200)]
    await asyncio.gather(*(store.add_prompt(a_prompt(f"of {sid}", session_id=sid)) for sid in sessions))
    rng = random.Random(7)

    async def poll(session_id: str) -> None:
        [entry] = await store.pending(session_id)
        assert f"of {session_id}".encode() in entry.data

    def cancel_after(turns: int, task: asyncio.Task[None]) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(cancel_after, turns - 1, task)
        else:
            task.cancel()

    polls = []
    for n in range(4000):
        polls.append(asyncio.create_task(poll(sessions[n % 200])))
        if n % 2:
            cancel_after(rng.randrange(1, 6), polls[-1])
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    results = await asyncio.gather(*polls, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) > 500
    assert [result for result in results if result and not isinstance(result, asyncio.CancelledError)] == []
    await asyncio.gather(*(poll(session_id) for session_id in sessions))
    assert len(server.ask("CLIENT LIST", "TYPE", "normal")) <= redis_node.MAX_CONNECTIONS + 1


async def test_a_connection_that_is_lost_already_is_not_used(server: RedisServer) -> None:
    connection = await redis_connection.connect(parse_redis_url(server.url), "127.0.0.1", server.port)
    assert await connection.ask(b"PING") == b"PONG"
    server.ask("CLIENT KILL", "TYPE", "normal")
    await connection.wait_closed()
    with pytest.raises(ConnectionError):
        connection.hand_over_to(lambda _: None, lambda _: None)


async def test_a_call_that_gets_no_reply_fails_in_time_and_the_next_one_works(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_lane, "CALL_SECONDS", 0.5)
    store = await connect()
    await store.add_prompt(a_prompt("p1"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await store.pending("s1")
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert len(await store.pending("s1")) == 1


async def test_calls_that_wait_are_bounded(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await connect()
    monkeypatch.setattr(redis_node, "MAX_QUEUED", 10)
    results = await asyncio.gather(*(store.head("s1") for _ in range(11)), return_exceptions=True)
    assert [isinstance(result, StoreUnavailable) for result in results] == [False] * 10 + [True]
    assert await store.head("s1") is None


# Sessions and their list


@pytest.mark.parametrize("session_id", ["}", "{", "{}", "}{", "%", "%7D", "{a}b", "ключ", "a b:c", "{user}:1"])
async def test_all_keys_of_a_session_are_in_one_slot(server: RedisServer, connect: Connect, session_id: str) -> None:
    store = await connect()
    await store.add_prompt(a_prompt("p1", session_id=session_id))
    await store.add_prompt(a_prompt("p1", session_id=session_id + "x"))
    await store.add_response(a_response("a1", session_id=session_id + "x"))
    keys = [key for key in server.ask("KEYS", "relay:{*") if not key.partition(b"}")[0].endswith(b"x")]
    assert len(keys) == 5
    assert len({key_slot(key) for key in keys}) == 1
    page = await store.sessions(limit=10, offset=0)
    assert [record.session_id for record in page.records] == [session_id, session_id + "x"]


async def test_ids_that_look_alike_when_escaped_are_different_sessions(connect: Connect) -> None:
    store = await connect()
    for n, session_id in enumerate(("}", "%7D", "%257D")):
        await store.add_prompt(a_prompt(f"p{n}", session_id=session_id))
    for session_id in ("}", "%7D", "%257D"):
        assert len(await store.pending(session_id)) == 1


async def test_a_session_that_was_never_listed_is_listed_by_the_next_write(
    server: RedisServer, connect: Connect
) -> None:
    store = await connect()
    for again in (a_prompt("p1"), a_prompt("p2"), a_response("a1")):
        await store.add_prompt(a_prompt("p1"))
        server.ask("HDEL", "relay:{s1}:meta", "r")
        server.ask("DEL", "relay:sessions")
        assert (await store.sessions(limit=10, offset=0)).total == 0
        await (store.add_response if again.kind is ASSISTANT else store.add_prompt)(again)
        assert (await store.sessions(limit=10, offset=0)).total == 1
        assert server.ask("HGET", "relay:{s1}:meta", "r") == b"1"


async def test_names_without_a_session_are_dropped_from_the_list(server: RedisServer, connect: Connect) -> None:
    store = await connect()
    for session_id in ("s1", "s2", "s3"):
        await store.add_prompt(a_prompt(session_id=session_id))
    server.ask("DEL", "relay:{s1}:meta")
    server.ask("ZADD", "relay:sessions", 99, b"00000000:s2")  # an earlier life of a session that lives
    page = await store.sessions(limit=10, offset=0)
    assert (page.total, [record.session_id for record in page.records]) == (2, ["s2", "s3"])
    server.ask("DEL", "relay:{s2}:meta")
    assert await store.collect_idle(0, keep=()) == []
    assert server.ask("ZCARD", "relay:sessions") == 1


async def test_sessions_created_in_the_same_millisecond_are_listed_in_order(connect: Connect) -> None:
    store = await connect()
    names = [f"s{n}" for n in (5, 3, 9, 1, 7)]
    for session_id in names:
        await store.add_prompt(a_prompt(session_id=session_id, now_ms=1))
    page = await store.sessions(limit=10, offset=0)
    assert [record.session_id for record in page.records] == names


async def test_two_instances_may_collect_at_once(connect: Connect) -> None:
    here, there = Listening(), Listening()
    one, other = await connect(here), await connect(there)
    for n in range(50):
        await one.add_prompt(a_prompt(session_id=f"s{n}", now_ms=1))
        await one.add_response(a_response(session_id=f"s{n}", now_ms=1))
    collected = await asyncio.gather(one.collect_idle(1, keep=()), other.collect_idle(1, keep=()))
    assert sorted([*collected[0], *collected[1]]) == sorted(f"s{n}" for n in range(50))
    await until(lambda: len(here.deleted) == len(there.deleted) == 50)
    assert (await one.sessions(limit=10, offset=0)).total == 0


async def test_what_is_trimmed_leaves_nothing_behind(server: RedisServer, connect: Connect) -> None:
    store = RedisStore(server.url, msgspec.structs.replace(GENEROUS, history_max_messages=3))
    await store.open(Listening())
    for n in range(1, 11):
        await store.add_prompt(a_prompt(f"p{n}", ts=n))
    assert server.ask("XLEN", "relay:{s1}:log") == 3
    assert server.ask("LRANGE", "relay:{s1}:times", 0, -1) == [b"8", b"9", b"10"]
    held = sum(len(a_prompt(f"p{n}", ts=n).data) for n in (8, 9, 10))
    assert int(server.ask("HGET", "relay:{s1}:meta", "b")) == held
    page = await store.history("s1", limit=10, offset=1, since=8)
    assert (page.total, [entry.seq for entry in page.entries]) == (2, [10])
    await store.close()


async def test_a_message_larger_than_the_whole_history_is_pending_but_not_in_it(server: RedisServer) -> None:
    store = RedisStore(server.url, msgspec.structs.replace(GENEROUS, history_max_bytes=1000))
    await store.open(Listening())
    await store.add_prompt(a_prompt("p1"))
    await store.add_prompt(a_prompt("p2", prompt="x" * 2000))
    page = await store.read("s1", 0, limit=10, max_bytes=10**9)
    assert (page.floor, page.entries) == (2, [])
    assert [entry.seq for entry in await store.pending("s1")] == [1, 2]
    await store.add_prompt(a_prompt("p3"))
    assert [entry.seq for entry in (await store.read("s1", 2, limit=10, max_bytes=10**9)).entries] == [3]
    await store.close()


# Starting


async def test_a_server_that_does_not_answer_is_named_when_starting(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.redis.OPEN_SECONDS", 0.3)
    server.kill()
    with pytest.raises(StartupError, match=rf"no Redis answers at 127\.0\.0\.1:{server.port}"):
        await RedisStore(server.url, GENEROUS).open(Listening())
    server.start()


async def test_a_wrong_password_is_told_when_starting(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.redis.OPEN_SECONDS", 0.3)
    with pytest.raises(StartupError) as refused:
        await RedisStore(f"redis://:secret@127.0.0.1:{server.port}", GENEROUS).open(Listening())
    assert "secret" not in str(refused.value)
    assert "AUTH" in str(refused.value)


@pytest.mark.parametrize("login", [":secret", "agent:word"])
async def test_every_connection_logs_in(server: RedisServer, connect: Connect, login: str) -> None:
    server.ask("ACL SETUSER", "agent", "on", ">word", "~*", "&*", "+@all")
    server.ask("CONFIG SET", "requirepass", "secret")
    store = await connect(url=f"redis://{login}@127.0.0.1:{server.port}/1")
    await store.add_prompt(a_prompt("p1"))
    assert len(await store.pending("s1")) == 1
    clients = [client for client in server.ask("CLIENT LIST") if client["name"] == "relay"]
    assert len(clients) == 3  # one that writes, one that looks, one that hears
    assert {(client["user"], client["db"]) for client in clients} == {(login.partition(":")[0] or "default", "1")}


async def test_a_server_that_may_drop_messages_is_refused(server: RedisServer) -> None:
    server.ask("CONFIG SET", "maxmemory-policy", "allkeys-lru")
    store = RedisStore(server.url, GENEROUS)
    await store.open(Listening())  # there is no bound, so nothing is ever dropped
    await store.close()
    server.ask("CONFIG SET", "maxmemory", "100mb")
    with pytest.raises(StartupError, match="noeviction"):
        await RedisStore(server.url, GENEROUS).open(Listening())


async def test_a_server_that_is_too_old_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "OLDEST", (99, 0))
    with pytest.raises(StartupError, match=r"Use 99\.0 or newer"):
        await RedisStore(server.url, GENEROUS).open(Listening())
