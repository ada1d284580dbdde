"""The smallest agent: fetches the prompts of a session and answers each with its own words.

    python examples/echo_agent.py abc [http://127.0.0.1:8000]

Needs nothing but Python. Safe to kill at any time: a prompt stays pending until it is answered, and the id of the
answer is made from the id of the prompt, so that a repeated answer is not kept twice.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def fetch(url: str) -> list[dict[str, Any]]:
    """Wait for prompts, 30 seconds at most."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return list(json.load(answer))
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        time.sleep(0.5)  # nobody has asked anything yet
        return []


def respond(url: str, body: dict[str, Any]) -> None:
    """Post an answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=60).close()


def main(session_id: str, relay: str = "http://127.0.0.1:8000") -> None:
    """Answer until interrupted."""
    print(f"Answering prompts of session {session_id!r} at {relay}", flush=True)
    while True:
        for prompt in fetch(f"{relay}/prompts/{session_id}"):
            client_msg_id = prompt["client_msg_id"]
            answer = {
                "session_id": session_id,
                "client_msg_id": client_msg_id,
                "assistant_msg_id": f"echo-{client_msg_id}",
                "text": f"You said: {prompt['prompt']}",
            }
            respond(f"{relay}/response", answer)
            print(f"answered {client_msg_id}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
