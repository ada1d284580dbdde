"""Who may do what: every role, every route, own and other sessions, the WebSocket by each of its ways in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2 as httpx
import jwt
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from relay.config import Settings
from relay.server.app import create_app
from tests.protocol.talk import Address, Talk, closed, next_message, ok, wait_until
from tests.server.tokens import ADMIN, AGENT, CLIENT, SECRET, SETTINGS, bearer, offer, session_token
from tests.serving import Server, running

WEB = httpx.Client(verify=False, timeout=20)

CALLERS = {
    "none": None,
    "client": CLIENT,
    "agent": AGENT,
    "admin": ADMIN,
    "client of own": session_token("client"),
    "agent of own": session_token("agent"),
    "admin of own": session_token("admin"),
    "client of ow*": session_token("client", "ow*"),
    "admin of *": session_token("admin", "*"),
}

OPEN, CLIENTS, AGENTS, BOTH, ADMINS, OVERVIEW = "open", "clients", "agents", "both", "admins", "overview"
MAY = {
    CLIENTS: {"client", "admin"},
    AGENTS: {"agent", "admin"},
    BOTH: {"client", "agent", "admin"},
    ADMINS: {"admin"},
    OVERVIEW: {"admin"},
}
ROUTES = {
    ("POST", "/prompt"): CLIENTS,
    ("GET", "/prompts/{session_id}"): AGENTS,
    ("POST", "/response"): AGENTS,
    ("GET", "/messages/{session_id}"): BOTH,
    ("POST", "/ticket"): CLIENTS,
    ("GET", "/sessions"): OVERVIEW,
    ("GET", "/sessions/{session_id}"): ADMINS,
    ("DELETE", "/sessions/{session_id}"): ADMINS,
    ("GET", "/healthz"): OPEN,
    ("GET", "/livez"): BOTH,
    ("GET", "/readyz"): BOTH,
    ("GET", "/metrics"): OVERVIEW,
    ("GET", "/docs"): BOTH,
    ("GET", "/openapi.json"): BOTH,
    ("GET", "/nowhere"): BOTH,
    ("PUT", "/prompt"): BOTH,
}


@pytest.fixture(scope="module", params=["serve", "uvicorn"])
def relay(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param, **SETTINGS, failed_logins_per_minute=0, rate_limit=0) as server:
        yield server


@pytest.fixture
def talk(relay: Server) -> Iterator[Talk]:
    """An admin's view; the session "own" has one pending prompt."""
    with Address(relay.url, ADMIN).client() as http:
        for session_id in ("own", "other"):
            http.delete(f"/sessions/{session_id}")
        talk = Talk(http, "own")
        talk.prompt(client_msg_id="p1")
        yield talk


def expected(caller: str, session_id: str, access: str) -> int:
    """401, 403, or 200 for whatever comes behind."""
    if access is OPEN:
        return 200
    if caller == "none":
        return 401
    role, _, scope = caller.partition(" of ")
    if role not in MAY[access]:
        return 403
    return 403 if scope not in ("", "*") and (session_id == "other" or access is OVERVIEW) else 200


def test_the_table_has_every_route() -> None:
    paths = create_app(Settings.model_construct()).openapi()["paths"]
    declared = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert declared <= set(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
@pytest.mark.parametrize("caller", CALLERS)
def test_a_route(relay: Server, talk: Talk, caller: str, route: tuple[str, str]) -> None:
    method, path = route
    scoped = "{session_id}" in path or method == "POST"
    for session_id in ("other", "own") if scoped else ("own",):
        before = talk.http.get("/sessions").json()["sessions"]
        body = {"session_id": session_id, "client_msg_id": "p1", "prompt": "x", "text": "y"}
        target = path.replace("{session_id}", session_id) + ("?wait=false" if path.startswith("/prompts") else "")
        answer = WEB.request(
            method, relay.url + target, json=body if method == "POST" else None, headers=bearer(CALLERS[caller])
        )
        want = expected(caller, session_id, ROUTES[route])
        if want == 200:
            missing = session_id == "other" and path not in ("/prompt", "/ticket")
            wanted = {"/nowhere": 404}.get(path, 405 if method == "PUT" else 404 if missing else 200)
            assert answer.status_code == wanted, answer.text
            continue
        assert answer.status_code == want, answer.text
        assert answer.json()["code"] == ("token_required" if want == 401 else "forbidden")
        assert answer.headers.get("www-authenticate") == ("Bearer" if want == 401 else None)
        assert answer.headers["cache-control"] == "no-store"
        assert talk.http.get("/sessions").json()["sessions"] == before, "a refused request has changed something"


def ways_in(relay: Server, token: str, session_id: str) -> dict[str, dict[str, Any]]:
    """Arguments of `connect` for each way to say who you are."""
    url = f"{relay.ws_url}/ws/{session_id}"
    ways: dict[str, dict[str, Any]] = {
        "header": {"uri": url, "additional_headers": bearer(token)},
        "subprotocol": {"uri": url, "subprotocols": offer(token)},
    }
    asked = WEB.post(f"{relay.url}/ticket", headers=bearer(token))
    if asked.status_code == 200:
        ways["ticket"] = {"uri": f"{url}?ticket={asked.json()['ticket']}"}
    return ways


@pytest.mark.parametrize("session_id", ["own", "other"])
@pytest.mark.parametrize("caller", CALLERS)
def test_a_websocket(relay: Server, talk: Talk, caller: str, session_id: str) -> None:
    talk.respond("p1")
    token = CALLERS[caller]
    want = expected(caller, session_id, CLIENTS)
    if token is None:
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{relay.ws_url}/ws/{session_id}")
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["www-authenticate"] == "Bearer"
        return
    for name, arguments in ways_in(relay, token, session_id).items():
        if want == 200:
            with connect(**arguments) as socket:
                assert socket.subprotocol == ("relay.v1" if name == "subprotocol" else None)
                if session_id == "own":
                    talk.round_trip(socket)
            continue
        with pytest.raises(InvalidStatus) as refused:
            connect(**arguments)
        assert refused.value.response.status_code == want
        assert json.loads(refused.value.response.body)["code"] == "forbidden"


@pytest.mark.parametrize("path", ["/ws", "/ws/", "/nowhere", "/prompt"])
def test_a_websocket_elsewhere_needs_a_token_too(relay: Server, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(relay.ws_url + path)
    assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        connect(relay.ws_url + path, additional_headers=bearer(CLIENT))
    assert refused.value.response.status_code in (400, 404)


def forged(**header: Any) -> str:
    return jwt.encode({"role": "admin", "sid": "*", "exp": time.time() + 60}, "", algorithm="none", headers=header)


BAD = {
    "unknown": "somebody-elses-token-0123456789",
    "almost": CLIENT[:-1],
    "longer": CLIENT + "1",
    "expired": session_token(lasts=-1),
    "expired long ago": session_token(lasts=-86_400),
    "not yet": session_token(nbf=time.time() + 600),
    "issued in the future": session_token(iat=time.time() + 600),
    "alg none": forged(),
    "alg none, typ JWT": forged(typ="JWT"),
    "another key": jwt.encode({"role": "admin", "sid": "*", "exp": time.time() + 60}, "x" * 32, algorithm="HS256"),
    "another algorithm": jwt.encode(
        {"role": "admin", "sid": "*", "exp": time.time() + 60}, SECRET + "x" * 64, algorithm="HS512"
    ),
    "HS384 with our key": jwt.encode(
        {"role": "admin", "sid": "*", "exp": time.time() + 60}, SECRET + " and more", algorithm="HS384"
    ),
    "no exp": jwt.encode({"role": "admin", "sid": "*"}, SECRET, algorithm="HS256"),
    "no sid": jwt.encode({"role": "admin", "exp": time.time() + 60}, SECRET, algorithm="HS256"),
    "no role": jwt.encode({"sid": "*", "exp": time.time() + 60}, SECRET, algorithm="HS256"),
    "unknown role": session_token("root"),
    "role of the wrong type": session_token(["admin"]),  # type: ignore[arg-type]
    "sid of the wrong type": session_token("client", 5),  # type: ignore[arg-type]
    "empty sid": session_token("client", ""),
    "exp in words": session_token(exp="tomorrow"),
    "exp without end": session_token(exp=float("inf")),
    "no payload": ".".join(session_token().split(".")[:1]),
    "cut short": session_token()[:-2],
    "payload exchanged": ".".join(
        [session_token().split(".")[0], session_token("admin", "*").split(".")[1], session_token().split(".")[2]]
    ),
    "very long": "x" * 5_000,
    "deeply nested": "W1tb" * 1_000 + ".e30.x",
    "not ASCII": "tökentökentökentökentöken",
}


@pytest.mark.parametrize("token", BAD.values(), ids=BAD)
def test_a_bad_token_is_401_everywhere(relay: Server, talk: Talk, token: str) -> None:
    header = b"Bearer " + token.encode()
    body = {"session_id": "own", "prompt": "x", "client_msg_id": "bad"}
    for answer in (
        WEB.get(f"{relay.url}/messages/own", headers={b"Authorization": header}),
        WEB.post(f"{relay.url}/prompt", json=body, headers={b"Authorization": header}),
    ):
        assert (answer.status_code, answer.json()["error"]) == (401, "Invalid token"), answer.text
        assert answer.headers["www-authenticate"] == "Bearer"
        assert token not in answer.text
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{relay.ws_url}/ws/own", subprotocols=offer(token))  # type: ignore[arg-type]
    assert refused.value.response.status_code == 401
    assert talk.pending_ids() == ["p1"]
    assert not [line for line in relay.lines if "Traceback" in line or token in line]


@pytest.mark.parametrize("value", ["Basic dXNlcjpwYXNz", "Bearer", CLIENT, f"Token {CLIENT}"])
def test_another_scheme_is_401(relay: Server, value: str) -> None:
    answer = WEB.get(f"{relay.url}/messages/own", headers={"Authorization": value})
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")


def test_the_scheme_may_be_in_any_case(relay: Server, talk: Talk) -> None:
    ok(WEB.get(f"{relay.url}/messages/own", headers={"Authorization": f"bEARER {CLIENT}"}))


def test_a_token_given_twice_is_no_token(relay: Server) -> None:
    headers = [("Authorization", f"Bearer {CLIENT}"), ("Authorization", f"Bearer {CLIENT}")]
    assert WEB.get(f"{relay.url}/messages/own", headers=headers).status_code == 401


def test_a_token_that_was_not_asked_for_is_not_remembered_as_a_good_one(relay: Server, talk: Talk) -> None:
    bad, client, agent = bearer("somebody-elses-token-0123456789"), bearer(CLIENT), bearer(AGENT)
    with httpx.Client(base_url=relay.url, verify=False) as http:  # all on one connection
        ok(http.get("/healthz", headers=bad))
        assert http.get("/messages/own", headers=bad).status_code == 401
    with httpx.Client(base_url=relay.url, verify=False) as http:
        for _ in range(2):
            ok(http.get("/messages/own", headers=client))
            assert http.get("/prompts/own?wait=false", headers=client).status_code == 403
            assert http.get("/prompts/own?wait=false", headers=agent).status_code == 200
            assert http.get("/sessions", headers=agent).status_code == 403
            assert http.get("/messages/own").status_code == 401


def test_an_expiring_token_is_looked_at_again_on_a_known_connection(relay: Server, talk: Talk) -> None:
    token = bearer(session_token("agent", lasts=1))
    with httpx.Client(base_url=relay.url, verify=False) as http:
        wait_until(lambda: http.get("/prompts/own?wait=false", headers=token).status_code == 401)


def test_401_and_403_come_before_the_body_is_read(relay: Server) -> None:
    for headers, status in (({}, 401), (bearer(AGENT), 403)):
        answer = WEB.post(f"{relay.url}/prompt", content=b"{not json", headers={"Content-Type": "text/plain"} | headers)
        assert answer.status_code == status


def test_a_ticket_is_good_once(relay: Server, talk: Talk) -> None:
    ticket = ok(WEB.post(f"{relay.url}/ticket", headers=bearer(CLIENT)))
    assert ticket["expires_in"] == 30
    url = f"{relay.ws_url}/ws/own?ticket={ticket['ticket']}"
    with connect(url) as socket:
        talk.round_trip(socket)
    with pytest.raises(InvalidStatus) as refused:
        connect(url)
    assert (refused.value.response.status_code, json.loads(refused.value.response.body)["code"]) == (
        401,
        "invalid_token",
    )
    assert not [line for line in relay.lines if ticket["ticket"] in line]


def test_a_ticket_for_one_session_is_for_no_other(relay: Server, talk: Talk) -> None:
    def ticket(session_id: str) -> str:
        answer = WEB.post(f"{relay.url}/ticket", headers=bearer(CLIENT), json={"session_id": session_id})
        return str(ok(answer)["ticket"])

    with pytest.raises(InvalidStatus) as refused:
        connect(f"{relay.ws_url}/ws/own?ticket={ticket('other')}")
    assert refused.value.response.status_code == 403
    with connect(f"{relay.ws_url}/ws/own?ticket={ticket('own')}") as socket:
        talk.round_trip(socket)


def test_a_ticket_opens_no_other_door(relay: Server) -> None:
    ticket = ok(WEB.post(f"{relay.url}/ticket", headers=bearer(ADMIN)))["ticket"]
    assert WEB.get(f"{relay.url}/messages/own?ticket={ticket}").status_code == 401
    assert WEB.get(f"{relay.url}/messages/own", headers=bearer(ticket)).status_code == 401


def test_a_socket_is_closed_when_its_token_expires(relay: Server, talk: Talk) -> None:
    with ExitStack() as stack:
        ways = ways_in(relay, session_token(lasts=2), "own")
        sockets = [stack.enter_context(connect(**arguments)) for arguments in ways.values()]
        assert len(sockets) == 3
        talk.round_trip(sockets[-1])
        for socket in sockets:
            if socket is not sockets[-1]:
                next_message(socket)
            assert closed(socket) == (4401, "token expired")


def test_a_poll_ends_when_its_token_expires(relay: Server, talk: Talk) -> None:
    talk.respond("p1")
    headers = bearer(session_token("agent", lasts=2))  # PyJWT counts in whole seconds
    answer = WEB.get(f"{relay.url}/prompts/own?timeout=60", headers=headers, timeout=20)
    assert (answer.status_code, answer.json()) == (200, [])
    assert WEB.get(f"{relay.url}/prompts/own", headers=headers).json()["details"] == "the token has expired"


def test_tokens_are_rotated_with_commas() -> None:
    old, new = "the-old-token-of-the-client", "the-new-token-of-the-client"
    with running("serve", client_token=f"{old}, {new}") as server:
        for token in (old, new):
            ok(WEB.post(f"{server.url}/prompt", json={"session_id": "s", "prompt": "x"}, headers=bearer(token)))
        assert WEB.get(f"{server.url}/messages/s", headers=bearer(f"{old}, {new}")).status_code == 401
