"""The specification's testing scenarios and example flows."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from tests.protocol.conftest import Listen
from tests.protocol.talk import Address, Talk, next_message, ok, wait_until


def test_flow_1_basic_prompt_response_cycle(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        stored = ok(talk.post_prompt("Hello"))
        assert stored == {"stored": True, "client_msg_id": stored["client_msg_id"]}
        [prompt] = talk.pending(wait="true", timeout=30)
        assert prompt == {
            "session_id": talk.session_id,
            "client_msg_id": stored["client_msg_id"],
            "prompt": "Hello",
            "ts": prompt["ts"],
        }
        accepted = ok(talk.post_response(stored["client_msg_id"], "Hi there!"))
        assert accepted == {
            "ok": True,
            "assistant_msg_id": accepted["assistant_msg_id"],
            "delivered": True,
            "recipients": 1,
        }
        message = next_message(client)
        assert message == {
            "session_id": talk.session_id,
            "assistant_msg_id": accepted["assistant_msg_id"],
            "client_msg_id": stored["client_msg_id"],
            "text": "Hi there!",
            "ts": message["ts"],
        }


def test_flow_2_multiple_clients_receive_the_same_response(talk: Talk, listen: Listen) -> None:
    with listen() as a, listen() as b:
        client_msg_id = talk.prompt()
        assert talk.pending_ids() == [client_msg_id]
        assert ok(talk.post_response(client_msg_id))["recipients"] == 2
        assert next_message(a) == next_message(b)


def test_flow_3_multiple_pending_prompts(talk: Talk) -> None:
    ids = [talk.prompt(f"Question {n}") for n in range(5)]
    for answered in range(5):
        assert talk.pending_ids() == ids[answered:]
        talk.respond(ids[answered])
    assert talk.pending_ids() == []


def test_a_missing_client_msg_id_becomes_a_uuid_v4(talk: Talk) -> None:
    assert uuid.UUID(talk.prompt()).version == 4


def test_a_missing_assistant_msg_id_becomes_a_uuid_v4(talk: Talk) -> None:
    assert uuid.UUID(talk.respond(talk.prompt())).version == 4


def test_prompts_come_oldest_first_whatever_their_ts(talk: Talk) -> None:
    ids = [talk.prompt(ts=ts) for ts in (3000, 1000, 2000)]
    assert talk.pending_ids() == ids


def test_concurrent_prompts_from_several_clients_are_all_kept(talk: Talk) -> None:
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda n: talk.prompt(f"Question {n}"), range(100)))
    assert sorted(talk.pending_ids()) == sorted(ids)


def test_a_client_that_reconnects_gets_what_comes_next_and_finds_the_rest_in_the_history(
    talk: Talk, listen: Listen
) -> None:
    first = talk.prompt()
    with listen() as client:
        talk.respond(first, "one")
        assert next_message(client)["text"] == "one"
    talk.respond(first, "two")
    with listen() as client:
        talk.respond(first, "three")
        assert next_message(client)["text"] == "three"
    texts = [m["data"]["text"] for m in talk.messages()["messages"] if m["type"] == "assistant"]
    assert texts == ["one", "two", "three"]


def test_metadata_is_handed_on_untouched(talk: Talk, listen: Listen) -> None:
    metadata = {"model": "x", "nested": {"list": [1, 2.5, None, True, "é\u2028😀"]}, "big": 2**70, "": {}}
    with listen() as client:
        client_msg_id = talk.prompt(metadata=metadata)
        assert talk.pending()[0]["metadata"] == metadata
        talk.respond(client_msg_id, metadata=metadata)
        assert next_message(client)["metadata"] == metadata
    assert [m["data"]["metadata"] for m in talk.messages()["messages"]] == [metadata, metadata]


def test_numbers_in_metadata_keep_their_digits(talk: Talk) -> None:
    body = b'{"session_id":"%b","prompt":"x","metadata":{"n":1.10000000000000000001e-2 , "m": 1E2}}'
    talk.http.post(
        "/prompt", content=body % talk.session_id.encode(), headers={"content-type": "application/json"}
    ).raise_for_status()
    assert '{"n":1.10000000000000000001e-2,"m":1E2}' in talk.http.get(f"/prompts/{talk.session_id}").text


@pytest.mark.parametrize("text", ["", "a\u0000b", "é😀\u2028", '"\\/\b\f\n\r\t', "\ufeff", "</script>"])
def test_any_text_comes_back_as_it_was(talk: Talk, listen: Listen, text: str) -> None:
    with listen() as client:
        client_msg_id = talk.prompt(text)
        assert talk.pending()[0]["prompt"] == text
        talk.respond(client_msg_id, text)
        assert next_message(client)["text"] == text
    assert [m["data"].get("prompt", m["data"].get("text")) for m in talk.messages()["messages"]] == [text, text]


def test_nothing_crosses_sessions(http: httpx.Client, talk: Talk, listen: Listen) -> None:
    other = Talk(http, f"other-{uuid.uuid4()}")
    with listen() as client:
        theirs = other.prompt("theirs", client_msg_id="same-id")
        mine = talk.prompt("mine", client_msg_id="same-id")
        other.respond(theirs, "for them", assistant_msg_id="same-answer")
        assert [p["prompt"] for p in talk.pending()] == ["mine"]
        talk.respond(mine, "for me", assistant_msg_id="same-answer")
        assert next_message(client)["text"] == "for me"
    assert other.messages()["total"] == talk.messages()["total"] == 2


# Long-polling


def test_a_waiting_poll_wakes_at_once(talk: Talk) -> None:
    """500 rounds of "poll starts, prompt arrives 0 to 5 ms later": a lost wake-up would sleep for 30 s."""
    talk.respond(talk.prompt())
    began = time.monotonic()
    with ThreadPoolExecutor(1) as agent:
        for n in range(500):
            poll = agent.submit(talk.pending, wait="true", timeout=30)
            time.sleep((n % 11) * 0.0005)
            client_msg_id = talk.prompt(f"Question {n}")
            [prompt] = poll.result(timeout=20)
            assert prompt["client_msg_id"] == client_msg_id
            talk.respond(client_msg_id)
    assert time.monotonic() - began < 30, "at least one poll slept until its timeout"


def test_twenty_polls_on_one_session_all_wake(at: Address, talk: Talk) -> None:
    talk.respond(talk.prompt())

    def poll(_: int) -> list[str]:
        with at.client(60) as http:
            return [p["client_msg_id"] for p in Talk(http, talk.session_id).pending(wait="true", timeout=30)]

    with ThreadPoolExecutor(20) as agents:
        polls = [agents.submit(poll, n) for n in range(20)]
        wait_until(lambda: talk.session()["waiting_agents"] == 20)
        client_msg_id = talk.prompt()
        assert [p.result(timeout=5) for p in polls] == [[client_msg_id]] * 20
    assert talk.session()["waiting_agents"] == 0


def test_a_poll_returns_an_empty_array_when_its_time_is_up(talk: Talk) -> None:
    talk.respond(talk.prompt())
    began = time.monotonic()
    assert talk.pending(wait="true", timeout=0.2) == []
    assert time.monotonic() - began >= 0.2


def test_a_poll_whose_caller_hangs_up_stops_waiting(at: Address, talk: Talk) -> None:
    talk.respond(talk.prompt())
    with at.client(0.3) as http, pytest.raises(httpx.ReadTimeout):
        http.get(f"/prompts/{talk.session_id}")
    wait_until(lambda: talk.session()["waiting_agents"] == 0)
    talk.round_trip()


# Idempotency under concurrency


def test_fifty_simultaneous_posts_of_one_client_msg_id_keep_one(talk: Talk) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda n: ok(talk.post_prompt(f"text {n}", client_msg_id="only")), range(50)))
    assert answers == [{"stored": True, "client_msg_id": "only"}] * 50
    assert talk.pending_ids() == ["only"]
    assert talk.messages()["total"] == 1


def test_fifty_simultaneous_posts_of_one_assistant_msg_id_broadcast_one(talk: Talk, listen: Listen) -> None:
    client_msg_id = talk.prompt()
    with listen() as client:
        with ThreadPoolExecutor(50) as pool:
            ids = set(pool.map(lambda _: talk.respond(client_msg_id, assistant_msg_id="only"), range(50)))
        assert ids == {"only"}
        assert next_message(client)["assistant_msg_id"] == "only"
        talk.respond(client_msg_id, "the next one", assistant_msg_id="next")
        assert next_message(client)["assistant_msg_id"] == "next"
    assert talk.messages()["total"] == 3
