"""Callers who hang up at any moment never leave their reply to somebody else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.protocol.talk import Talk
from tests.serving import running
from tests.store.redis_server import RedisServer

POLLS = 2_000
SESSIONS = 200


@pytest.mark.timeout(120)
async def test_two_thousand_polls_cancelled_at_random_get_nobody_elses_data(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    moments = random.Random(3)
    answered = cancelled = 0

    async def poll(http: httpx.AsyncClient, number: int) -> None:
        nonlocal answered, cancelled
        session_id = f"s{number % SESSIONS}"
        asking = asyncio.create_task(http.get(f"/prompts/{session_id}", params={"timeout": 0.05}))
        # Half of them wait, however slow the machine is: what they are given must be their own.
        patience = moments.choice([None, moments.uniform(0, 0.06)])
        done, _ = await asyncio.wait({asking}, timeout=patience)
        if not done:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            cancelled += 1
            return
        answered += 1
        assert {prompt["session_id"] for prompt in asking.result().json()} <= {session_id}

    async def keep_busy(http: httpx.AsyncClient) -> None:
        while True:
            session_id = f"s{moments.randrange(SESSIONS)}"
            body = {"session_id": session_id, "prompt": session_id, "client_msg_id": "p"}
            (await http.post("/prompt", json=body)).raise_for_status()
            answer = {"session_id": session_id, "client_msg_id": "p", "text": session_id}
            assert (await http.post("/response", json=answer)).status_code == 200

    try:
        with running("serve", store_url=redis.url) as server:
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as http:
                for n in range(SESSIONS):
                    body = {"session_id": f"s{n}", "prompt": f"s{n}", "client_msg_id": f"first-{n}"}
                    (await http.post("/prompt", json=body)).raise_for_status()
                    if n % 2:
                        answer = {"session_id": f"s{n}", "client_msg_id": f"first-{n}", "text": "x"}
                        (await http.post("/response", json=answer)).raise_for_status()
                busy = asyncio.create_task(keep_busy(http))
                for batch in range(0, POLLS, 50):
                    await asyncio.gather(*(poll(http, n) for n in range(batch, batch + 50)))
                busy.cancel()
                await asyncio.gather(busy, return_exceptions=True)
            with httpx.Client(base_url=server.url, timeout=20) as after:
                Talk(after, "s0").round_trip()
            connections = [line for line in redis.ask("CLIENT", "LIST").splitlines() if b"name=relay" in line]
            assert 0 < len(connections) <= 10, "the pool leaks"
            assert not [line for line in server.lines if "Traceback" in line]
    finally:
        redis.stop()
    assert answered + cancelled == POLLS
    assert min(answered, cancelled) > POLLS / 20
