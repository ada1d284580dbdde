"""The obvious FastAPI relay: the specification, endpoint by endpoint, as its tutorial would have it written.

What everything is compared with. It keeps nothing beyond its process, has no limits, tokens or metrics, and logs what
uvicorn logs. Not tuned, and not made slow either.
"""

# Pydantic reads the annotations when the module is loaded, so they must be the types themselves.
import asyncio
import os
import time
import uuid
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, HTTPException, Query, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field

PING_SECONDS = float(os.environ.get("PING_SECONDS", "30"))
MAX_CHARACTERS = 131_072

app = FastAPI()


class PromptIn(BaseModel):
    session_id: str
    prompt: str = Field(max_length=MAX_CHARACTERS)
    client_msg_id: str | None = None
    metadata: dict[str, Any] | None = None


class PromptMessage(BaseModel):
    session_id: str
    client_msg_id: str
    prompt: str
    metadata: dict[str, Any] | None = None
    ts: int


class PromptStored(BaseModel):
    stored: bool
    client_msg_id: str


class ResponseIn(BaseModel):
    session_id: str
    client_msg_id: str
    assistant_msg_id: str | None = None
    text: str = Field(max_length=MAX_CHARACTERS)
    metadata: dict[str, Any] | None = None
    ts: int | None = None


class AssistantMessage(BaseModel):
    session_id: str
    assistant_msg_id: str
    client_msg_id: str
    text: str
    metadata: dict[str, Any] | None = None
    ts: int


class ResponseAccepted(BaseModel):
    ok: bool
    assistant_msg_id: str
    delivered: bool


class HistoryItem(BaseModel):
    type: str
    data: PromptMessage | AssistantMessage


class History(BaseModel):
    session_id: str
    messages: list[HistoryItem]
    total: int
    limit: int
    offset: int


class Session:
    def __init__(self) -> None:
        self.prompts: dict[str, PromptMessage] = {}
        self.pending: dict[str, PromptMessage] = {}
        self.responses: dict[str, AssistantMessage] = {}
        self.subscribers: set[WebSocket] = set()
        self.history: list[HistoryItem] = []
        self.arrived = asyncio.Event()


sessions: dict[str, Session] = {}


def now_ms() -> int:
    return int(time.time() * 1000)


def find(session_id: str) -> Session:
    if session_id not in sessions:
        raise HTTPException(404, "Session does not exist")
    return sessions[session_id]


@app.post("/prompt", response_model=PromptStored)
async def post_prompt(body: PromptIn) -> PromptStored:
    session = sessions.get(body.session_id)
    if session is None:
        session = sessions[body.session_id] = Session()
    client_msg_id = body.client_msg_id or str(uuid.uuid4())
    if client_msg_id not in session.prompts:
        message = PromptMessage(
            session_id=body.session_id,
            client_msg_id=client_msg_id,
            prompt=body.prompt,
            metadata=body.metadata,
            ts=now_ms(),
        )
        session.prompts[client_msg_id] = message
        session.pending[client_msg_id] = message
        session.history.append(HistoryItem(type="prompt", data=message))
        session.arrived.set()
    return PromptStored(stored=True, client_msg_id=client_msg_id)


@app.get("/prompts/{session_id}", response_model=list[PromptMessage])
async def get_prompts(
    session_id: str, timeout: float = Query(30, ge=0, le=300), wait: bool = True
) -> list[PromptMessage]:
    session = find(session_id)
    if wait and not session.pending:
        session.arrived.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(session.arrived.wait(), timeout)
    return list(session.pending.values())


@app.post("/response", response_model=ResponseAccepted)
async def post_response(body: ResponseIn) -> ResponseAccepted:
    session = find(body.session_id)
    if body.client_msg_id not in session.prompts:
        raise HTTPException(404, "client_msg_id not found")
    assistant_msg_id = body.assistant_msg_id or str(uuid.uuid4())
    if assistant_msg_id not in session.responses:
        message = AssistantMessage(
            session_id=body.session_id,
            assistant_msg_id=assistant_msg_id,
            client_msg_id=body.client_msg_id,
            text=body.text,
            metadata=body.metadata,
            ts=body.ts or now_ms(),
        )
        session.responses[assistant_msg_id] = message
        session.pending.pop(body.client_msg_id, None)
        session.history.append(HistoryItem(type="assistant", data=message))
        for socket in list(session.subscribers):
            try:
                await socket.send_json({"type": "message", "data": message.model_dump()})
            except (WebSocketDisconnect, RuntimeError):
                session.subscribers.discard(socket)
    return ResponseAccepted(ok=True, assistant_msg_id=assistant_msg_id, delivered=True)


@app.websocket("/ws/{session_id}")
async def listen(socket: WebSocket, session_id: str) -> None:
    session = sessions.get(session_id)
    if session is None:
        await socket.close(code=4404)
        return
    await socket.accept()
    session.subscribers.add(socket)

    async def ping() -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await socket.send_json({"type": "ping", "ts": now_ms()})

    pings = asyncio.create_task(ping())
    try:
        while True:
            await socket.receive_text()
    except WebSocketDisconnect:
        pass
    finally:
        pings.cancel()
        session.subscribers.discard(socket)


@app.get("/messages/{session_id}", response_model=History)
async def get_messages(
    session_id: str, limit: int = Query(100, ge=1, le=1000), offset: int = Query(0, ge=0), since: float | None = None
) -> History:
    found = find(session_id).history
    if since is not None:
        found = [item for item in found if item.data.ts > since]
    return History(
        session_id=session_id,
        messages=found[offset : offset + limit],
        total=len(found),
        limit=limit,
        offset=offset,
    )


@app.get("/healthz")
async def healthz() -> dict[str, Any]:
    return {"ok": True, "timestamp": now_ms()}
