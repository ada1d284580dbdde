"""The smallest agent: fetches the prompts of a session and answers each with its own words.

    python examples/echo_agent.py abc [http://127.0.0.1:8000]

If the relay wants a token, the agent takes it from the environment variable RELAY_TOKEN, not from the command line,
which other users of the machine can see.

Needs nothing but Python. Safe to kill at any time: a prompt stays pending until it is answered, and the id of the
answer is made from the id of the prompt, so that a repeated answer is not kept twice.
"""

import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """GET, which waits for prompts 30 seconds at most; with a body, POST."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("RELAY_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


def answer_prompts(session_id: str, relay: str) -> float:
    """Fetch what is pending, or wait for it, and answer it. Returns how many seconds to rest before the next time."""
    try:
        fetch_and_answer(session_id, relay)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            sys.exit(f"The relay refuses: {error.read().decode()}\nAn agent's token goes into RELAY_TOKEN.")
        if error.code == 404:  # nobody has asked anything yet
            return 0.5
        print(f"the relay says {error.code}: {error.read().decode()}", flush=True)
        return 2
    except OSError as error:
        print(f"cannot reach the relay ({error}), trying again", flush=True)
        return 2
    return 0


def fetch_and_answer(session_id: str, relay: str) -> None:
    """Wait for prompts, and answer them."""
    for prompt in call(f"{relay}/prompts/{quote(session_id, safe='')}"):
        client_msg_id = prompt["client_msg_id"]
        answer = {
            "session_id": session_id,
            "client_msg_id": client_msg_id,
            "assistant_msg_id": f"echo-{client_msg_id}",
            "text": f"You said: {prompt['prompt']}",
        }
        call(f"{relay}/response", answer)
        print(f"answered {client_msg_id}", flush=True)


def main(session_id: str, relay: str = "http://127.0.0.1:8000") -> None:
    """Answer until interrupted, or refused."""
    print(f"Answering prompts of session {session_id!r} at {relay}", flush=True)
    while True:
        time.sleep(answer_prompts(session_id, relay))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/echo_agent.py <session id> [http://127.0.0.1:8000]")
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
