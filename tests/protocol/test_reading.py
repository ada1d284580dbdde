"""How we read the specification where it is open: one test or more for each row of the table in docs/protocol.md.

Rows that need a setting are in tests/server/test_configured.py; those about bad input also in bad_input/.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.protocol.conftest import Listen
from tests.protocol.talk import Address, Talk, assert_error, closed, next_frame, next_message, ok, wait_until


def test_row_01_a_socket_to_an_unknown_session_waits_for_it_without_creating_it(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        for path in ("prompts", "messages", "sessions"):
            assert talk.http.get(f"/{path}/{talk.session_id}").status_code == 404
        talk.round_trip(client)


def test_row_02_the_same_response_again_is_accepted_and_not_sent_twice(talk: Talk, listen: Listen) -> None:
    client_msg_id = talk.prompt()
    with listen() as client:
        first = talk.post_response(client_msg_id, assistant_msg_id="a1", metadata={"x": 1, "y": 2}, ts=1)
        again = talk.post_response(client_msg_id, assistant_msg_id="a1", metadata={"y": 2, "x": 1}, ts=2)
        assert ok(first) == ok(again)
        talk.respond(client_msg_id, "the next", assistant_msg_id="a2")
        assert [next_message(client)["assistant_msg_id"] for _ in range(2)] == ["a1", "a2"]
    assert [m["data"]["ts"] for m in talk.messages()["messages"]][1] == 1
    assert talk.messages()["total"] == 3


@pytest.mark.parametrize(
    "other",
    [
        {"text": "other"},
        {"metadata": {"x": 2}},
        {"metadata": {"x": True}},
        {"metadata": None},
        {"client_msg_id": "p2"},
        {"client_msg_id": "never posted"},
    ],
    ids=str,
)
def test_row_02_anything_different_under_a_used_assistant_msg_id_is_a_conflict(
    talk: Talk, listen: Listen, other: dict[str, object]
) -> None:
    talk.prompt(client_msg_id="p1")
    talk.prompt(client_msg_id="p2")
    response = {"client_msg_id": "p1", "text": "one", "assistant_msg_id": "a1", "metadata": {"x": 1}}
    ok(talk.post_response(**response))
    with listen() as client:
        assert_error(
            talk.post_response(**(response | other)),
            409,
            "response_conflict",
            "Another response has this assistant_msg_id",
            "client_msg_id, text or metadata differ from the first response with this id",
        )
        assert talk.pending_ids() == ["p2"]
        assert talk.messages()["total"] == 3
        talk.round_trip(client)


def test_row_03_the_first_prompt_under_a_client_msg_id_wins(talk: Talk) -> None:
    assert ok(talk.post_prompt("first", client_msg_id="p1")) == {"stored": True, "client_msg_id": "p1"}
    assert ok(talk.post_prompt("second", client_msg_id="p1")) == {"stored": True, "client_msg_id": "p1"}
    assert [p["prompt"] for p in talk.pending()] == ["first"]
    talk.respond("p1")
    assert ok(talk.post_prompt("third", client_msg_id="p1")) == {"stored": True, "client_msg_id": "p1"}
    assert talk.pending() == []
    assert talk.messages()["total"] == 2


def test_row_04_a_second_answer_is_kept_and_broadcast_and_the_prompt_stays_answered(talk: Talk, listen: Listen) -> None:
    client_msg_id = talk.prompt()
    with listen() as client:
        talk.respond(client_msg_id, "one")
        talk.respond(client_msg_id, "two")
        assert [next_message(client)["text"] for _ in range(2)] == ["one", "two"]
    assert talk.pending() == []
    assert talk.messages()["total"] == 3


def test_row_05_delivered_is_true_and_recipients_counts_the_connected_clients(talk: Talk, listen: Listen) -> None:
    client_msg_id = talk.prompt()
    for clients in range(3):
        accepted = ok(talk.post_response(client_msg_id, assistant_msg_id=f"none-{clients}"))
        assert (accepted["delivered"], accepted["recipients"]) == (True, 0)
    with listen(), listen():
        assert ok(talk.post_response(client_msg_id))["recipients"] == 2
    wait_until(lambda: talk.session()["clients"] == 0)
    assert ok(talk.post_response(client_msg_id))["recipients"] == 0


@pytest.mark.parametrize("character", ["x", "é"])
def test_row_06_131072_bytes_are_accepted_and_one_more_is_refused(talk: Talk, listen: Listen, character: str) -> None:
    text = character * (131_072 // len(character.encode()))
    with listen() as client:
        client_msg_id = talk.prompt(text)
        assert talk.pending()[0]["prompt"] == text
        talk.respond(client_msg_id, text)
        assert next_message(client)["text"] == text
        for answer in (talk.post_prompt(text + "x"), talk.post_response(client_msg_id, text + "x")):
            assert_error(answer, 400, "message_too_large", "Message exceeds size limit")
        assert talk.messages()["total"] == 2
        talk.round_trip(client)


def test_row_07_validation_says_400_and_names_the_field_without_echoing_it(talk: Talk) -> None:
    secret = "my secret text"
    answer = talk.http.post("/prompt", json={"session_id": talk.session_id, "prompt": [secret]})
    assert_error(answer, 400, "invalid_field", "Invalid request body", "prompt must be a string")
    assert secret not in answer.text


def test_row_07_openapi_says_400_and_never_422(http: httpx.Client) -> None:
    schema = ok(http.get("/openapi.json"))
    statuses = {s for path in schema["paths"].values() for operation in path.values() for s in operation["responses"]}
    assert "422" not in statuses
    for path in ("/prompt", "/response"):
        assert "400" in schema["paths"][path]["post"]["responses"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"session_id":',
        b"\xff\xfe{\x00}\x00",
        b'{"session_id":"s","prompt":"\\ud800"}',
        b'{"prompt":NaN}',
        b"[" * 100_000,
    ],
    ids=["syntax", "utf-16", "lone surrogate", "nan", "nesting"],
)
def test_row_08_what_is_not_json_in_utf8_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/prompt", content=body, headers={"content-type": "application/json"})
    assert_error(
        answer,
        400,
        "invalid_json",
        "Invalid JSON",
        "the body must be JSON in UTF-8, without NaN, lone surrogates, huge numbers or deep nesting",
    )


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_row_09_only_application_json_is_accepted(talk: Talk, content_type: str | None) -> None:
    body = json.dumps({"session_id": talk.session_id, "prompt": "x"}).encode()
    headers = {} if content_type is None else {"content-type": content_type}
    answer = talk.http.post("/prompt", content=body, headers=headers)
    assert_error(answer, 400, "unsupported_content_type", "Content-Type must be application/json")
    assert talk.http.get(f"/sessions/{talk.session_id}").status_code == 404


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
def test_row_09_a_charset_of_utf8_may_be_named(talk: Talk, content_type: str) -> None:
    body = json.dumps({"session_id": talk.session_id, "prompt": "x"}).encode()
    ok(talk.http.post("/prompt", content=body, headers={"content-type": content_type}))


def test_row_10_unknown_fields_are_ignored_and_null_is_missing(talk: Talk) -> None:
    stored = ok(talk.post_prompt("", client_msg_id=None, metadata=None, ts=None, unknown={"a": 1}))
    [prompt] = talk.pending()
    assert set(prompt) == {"session_id", "client_msg_id", "prompt", "ts"}
    assert prompt["prompt"] == ""
    accepted = ok(talk.post_response(stored["client_msg_id"], "", assistant_msg_id=None, unknown=1))
    assert accepted["ok"] is True


@pytest.mark.parametrize("bad", ["", "a/b", ".", "..", "x" * 257, "a\nb", "a\x7fb", "a\x85b"], ids=repr)
@pytest.mark.parametrize("field", ["session_id", "client_msg_id", "assistant_msg_id"])
def test_row_11_an_impossible_id_is_400_in_a_body(talk: Talk, field: str, bad: str) -> None:
    client_msg_id = talk.prompt()
    body = {"session_id": talk.session_id, "client_msg_id": client_msg_id, "text": "x", field: bad}
    rule = "must be 1 to 256 characters, without '/' or control characters, and not '.' or '..'"
    assert_error(
        talk.http.post("/response", json=body), 400, "invalid_field", "Invalid request body", f"{field} {rule}"
    )
    assert talk.pending_ids() == [client_msg_id]


@pytest.mark.parametrize("path", ["prompts", "messages", "sessions"])
@pytest.mark.parametrize("bad", ["%2E", "a%2Fb", "x" * 257, "a%0Ab"])
def test_row_11_an_impossible_id_is_404_in_a_path(http: httpx.Client, path: str, bad: str) -> None:
    assert http.get(f"/{path}/{bad}").status_code == 404


@pytest.mark.parametrize("odd", ["x" * 256, "ü 😀?#&%", "a.b", "...", "~", "'\"<>\\"], ids=repr)
def test_row_11_an_odd_id_works_everywhere(http: httpx.Client, at: Address, odd: str) -> None:
    path = str(httpx.QueryParams({"": odd}))[1:].replace("+", "%20")
    ok(http.post("/prompt", json={"session_id": odd, "prompt": "x", "client_msg_id": odd}))
    with at.connect(f"/ws/{path}") as client:
        body = {"session_id": odd, "client_msg_id": odd, "text": "y", "assistant_msg_id": odd}
        ok(http.post("/response", json=body))
        assert next_message(client)["session_id"] == odd
    assert ok(http.get(f"/messages/{path}"))["session_id"] == odd
    ok(http.delete(f"/sessions/{path}"))


@pytest.mark.parametrize("ts", [0, 1, 1.5, 1234567890123, 8.64e15, 8_640_000_000_000_000])
def test_row_12_ts_is_kept_as_given(talk: Talk, ts: float) -> None:
    client_msg_id = talk.prompt(ts=ts)
    talk.respond(client_msg_id, ts=ts)
    assert [m["data"]["ts"] for m in talk.messages()["messages"]] == [ts, ts]


def test_row_12_a_missing_ts_is_the_time_of_arrival_in_milliseconds(talk: Talk) -> None:
    before = time.time() * 1000
    talk.respond(talk.prompt())
    for message in talk.messages()["messages"]:
        assert before - 5_000 < message["data"]["ts"] < time.time() * 1000 + 5_000


@pytest.mark.parametrize("ts", [-1, -0.5, 8.65e15, 10**30, True, "1", []], ids=repr)
def test_row_12_any_other_ts_is_refused(talk: Talk, ts: object) -> None:
    answer = talk.post_prompt(ts=ts)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_field"
    assert answer.json()["details"].startswith("ts must be a number")


@pytest.mark.parametrize(
    ("path", "query", "details"),
    [
        ("messages", "limit=0", "limit must be an integer from 1 to 1000"),
        ("messages", "limit=1001", "limit must be an integer from 1 to 1000"),
        ("messages", "limit=1.5", "limit must be an integer from 1 to 1000"),
        ("messages", "offset=-1", "offset must be an integer from 0 to 9007199254740991"),
        ("messages", "since=nan", "since must be a finite number"),
        ("prompts", "timeout=301", "timeout must be a finite number from 0 to 300"),
        ("prompts", "timeout=-1", "timeout must be a finite number from 0 to 300"),
        ("prompts", "timeout=inf", "timeout must be a finite number from 0 to 300"),
        ("prompts", "wait=maybe", "wait must be true or false"),
    ],
)
def test_row_13_a_query_out_of_bounds_is_refused_with_the_bound(
    talk: Talk, path: str, query: str, details: str
) -> None:
    talk.prompt()
    answer = talk.http.get(f"/{path}/{talk.session_id}?{query}")
    assert_error(answer, 400, "invalid_query", "Invalid query parameter", details)


def test_row_14_since_is_strict_and_total_counts_what_matches(talk: Talk) -> None:
    for ts in (1000, 2000, 2000, 3000.5, 4000):
        talk.prompt(ts=ts)
    assert [m["data"]["ts"] for m in talk.messages(since=2000)["messages"]] == [3000.5, 4000]
    page = talk.messages(since=1000, limit=2, offset=1)
    assert [m["data"]["ts"] for m in page["messages"]] == [2000, 3000.5]
    assert (page["total"], page["limit"], page["offset"]) == (4, 2, 1)
    assert talk.messages(since=4000)["total"] == 0
    assert talk.messages(since=-1)["total"] == 5


def test_row_14_pages_follow_each_other_without_gap_or_overlap(talk: Talk) -> None:
    ids = [talk.prompt() for _ in range(25)]
    pages = [talk.messages(limit=10, offset=offset) for offset in (0, 10, 20, 30)]
    assert [m["data"]["client_msg_id"] for page in pages for m in page["messages"]] == ids
    assert {page["total"] for page in pages} == {25}


def test_row_15_a_poll_returns_at_once_while_prompts_are_pending(talk: Talk) -> None:
    client_msg_id = talk.prompt()
    assert [p["client_msg_id"] for p in talk.pending(wait="true", timeout=300)] == [client_msg_id]


def test_row_15_another_session_or_a_duplicate_does_not_wake_a_poll(at: Address, talk: Talk) -> None:
    talk.prompt(client_msg_id="p1")
    talk.respond("p1")
    with at.client() as other, ThreadPoolExecutor(1) as agent:
        poll = agent.submit(Talk(other, talk.session_id).pending, wait="true", timeout=20)
        wait_until(lambda: talk.session()["waiting_agents"] == 1)
        ok(talk.http.post("/prompt", json={"session_id": talk.session_id + "-other", "prompt": "x"}))
        talk.prompt(client_msg_id="p1")
        assert talk.session()["waiting_agents"] == 1
        talk.prompt(client_msg_id="p2")
        assert [p["client_msg_id"] for p in poll.result(5)] == ["p2"]


@pytest.mark.parametrize("path", ["prompts", "messages"])
def test_row_16_an_unknown_session_is_404_at_once(talk: Talk, path: str) -> None:
    answer = talk.http.get(f"/{path}/{talk.session_id}", timeout=5)
    assert_error(answer, 404, "session_not_found", "Session does not exist")


def test_row_16_a_response_needs_its_session_and_its_prompt(talk: Talk) -> None:
    assert_error(talk.post_response("p1"), 404, "session_not_found", "Session does not exist")
    talk.prompt(client_msg_id="p1")
    assert_error(talk.post_response("p2"), 404, "prompt_not_found", "No prompt with this client_msg_id in the session")
    assert talk.pending_ids() == ["p1"]
    assert talk.messages()["total"] == 1


def test_row_17_a_ping_gets_a_pong_a_pong_gets_nothing_all_else_an_error(talk: Talk, listen: Listen) -> None:
    with listen() as client:
        client.send('{"type":"pong","ts":1}')
        client.send('{"type":"ping","ts":1}')
        assert next_frame(client).keys() == {"type", "ts"}
        client.send('{"type":"hello"}')
        frame = next_frame(client)
        assert frame == {
            "type": "error",
            "error": "Invalid message",
            "details": "type must be ping or pong",
            "code": "invalid_field",
        }
        talk.round_trip(client)


def test_row_17_a_frame_over_64_kib_closes_with_1009(listen: Listen) -> None:
    with listen() as client:
        client.send('{"type":"pong","x":"' + "x" * 65_536 + '"}')
        assert closed(client)[0] == 1009


@pytest.mark.parametrize("path", ["/ws", "/ws/"])
def test_row_18_a_socket_without_a_session_is_refused_with_400(at: Address, http: httpx.Client, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        at.connect(path)
    response = refused.value.response
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert json.loads(response.body)["code"] == "upgrade_required"
    assert_error(http.get(path), 400, "upgrade_required", "This path is a WebSocket")


def test_row_18_a_plain_get_of_a_websocket_path_is_400(http: httpx.Client) -> None:
    assert_error(http.get("/ws/x"), 400, "upgrade_required", "This path is a WebSocket")


def test_row_19_deleting_a_session_closes_its_sockets_and_ends_its_polls(
    at: Address, talk: Talk, listen: Listen
) -> None:
    talk.respond(talk.prompt())
    with listen() as client, at.client() as other, ThreadPoolExecutor(1) as agent:
        poll = agent.submit(other.get, f"/prompts/{talk.session_id}")
        wait_until(lambda: talk.session()["waiting_agents"] == 1)
        assert ok(talk.http.delete(f"/sessions/{talk.session_id}")) == {"deleted": True}
        assert_error(poll.result(5), 404, "session_not_found", "Session does not exist")
        assert closed(client) == (4404, "session deleted")
    assert_error(talk.http.delete(f"/sessions/{talk.session_id}"), 404, "session_not_found", "Session does not exist")
    talk.round_trip()
    assert talk.messages()["total"] == 2


def test_row_21_absent_metadata_is_left_out(talk: Talk) -> None:
    talk.respond(talk.prompt())
    assert all("metadata" not in m["data"] for m in talk.messages()["messages"])


def test_row_23_every_refusal_has_the_same_shape(http: httpx.Client) -> None:
    assert_error(http.get("/nope"), 404, "not_found", "Not found")
    assert_error(http.get("/healthz/"), 404, "not_found", "Not found")
    wrong_method = http.put("/prompt")
    assert_error(wrong_method, 405, "method_not_allowed", "Method not allowed")
    assert wrong_method.headers["allow"] == "POST"


def test_row_23_an_unrouted_websocket_is_404_in_json(at: Address) -> None:
    with pytest.raises(InvalidStatus) as refused:
        at.connect("/nope")
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body)["code"] == "not_found"


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_row_24_a_healthy_server_says_so(http: httpx.Client, path: str) -> None:
    health = ok(http.get(path))
    assert health == {"ok": True, "timestamp": health["timestamp"]}
    assert abs(health["timestamp"] - time.time() * 1000) < 60_000


def test_nothing_of_the_api_is_cached(http: httpx.Client, talk: Talk) -> None:
    for answer in (http.get("/healthz"), talk.post_prompt(), http.get("/nope"), http.get("/sessions")):
        assert answer.headers["cache-control"] == "no-store"


def test_a_session_tells_what_it_holds_and_who_listens(talk: Talk, listen: Listen) -> None:
    before = time.time() * 1000 - 5_000
    talk.respond(talk.prompt())
    talk.prompt()
    with listen():
        session = talk.session()
        assert before < session.pop("created") <= session.pop("last_activity")
        assert session == {
            "session_id": talk.session_id,
            "messages": 3,
            "pending": 1,
            "clients": 1,
            "waiting_agents": 0,
        }


def test_sessions_are_listed_in_pages(http: httpx.Client, talk: Talk) -> None:
    talk.prompt()
    first = ok(http.get("/sessions", params={"limit": 1}))
    assert (len(first["sessions"]), first["limit"], first["offset"]) == (1, 1, 0)
    last = ok(http.get("/sessions", params={"limit": 1, "offset": first["total"] - 1}))
    assert last["sessions"][0]["session_id"] == talk.session_id
    assert ok(http.get("/sessions", params={"offset": first["total"]}))["sessions"] == []


def test_metrics_are_served_as_prometheus_text(http: httpx.Client, talk: Talk) -> None:
    talk.prompt(client_msg_id="p1")
    talk.prompt(client_msg_id="p1")
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(lines["relay_prompts_total"]) >= 1
    assert float(lines['relay_duplicates_total{kind="prompt"}']) >= 1
