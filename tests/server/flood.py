"""A flood, in a process of its own: so many connections ask again as soon as they are answered, or cut off.

    python -m tests.server.flood <port> <connections> [token]

Says "flooding" when every connection has been used, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

_BODY = b'{"session_id":"flooded","prompt":"x"}'


async def _ask_for_ever(port: int, request: bytes, used: asyncio.Semaphore) -> None:
    first = True
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                while not reader.at_eof():
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    if first:
                        used.release()
                        first = False
            finally:
                writer.close()


async def _flood(port: int, connections: int, token: str | None) -> None:
    head = f"POST /prompt HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(_BODY)}\r\n"
    head += "Content-Type: application/json\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
    used = asyncio.Semaphore(0)
    asking = [
        asyncio.create_task(_ask_for_ever(port, head.encode() + b"\r\n" + _BODY, used)) for _ in range(connections)
    ]
    for _ in asking:
        await used.acquire()
    print("flooding", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # as whoever floods would: without a word to anybody


if __name__ == "__main__":
    asyncio.run(_flood(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
