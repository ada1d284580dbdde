"""Under uvicorn: a whole answer in one write, without telling uvicorn of it in two messages first.

uvicorn looks twice at each header that it is told of, and writes the head as soon as it has it: two system calls for
each answer, each of which wakes the peer. Together that was a fifth of all the time that the ASGI door needs for a
prompt. ASGI has no word for "this is all of it". So what uvicorn would write is written here, and its own object for
the request is left as both messages would have left it. Any other server, a middleware's `send` and whatever is not
simple are left alone.
"""

from __future__ import annotations

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from relay.server.heads import HEADS
from relay.server.http import NO_CONTENT, Reply


def write_whole(answer: Reply, send: Send) -> bool:
    """Write the answer, and let uvicorn know that it was; False, and nothing has happened, if that is not for us."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or not _is_simple(cycle):
        return False
    if isinstance(answer, bytes):
        data = HEADS.usual(answer, cycle.default_headers)
    elif answer.is_long or answer.status == NO_CONTENT:
        return False
    else:
        data = HEADS.whole(answer, cycle.default_headers)
    cycle.waiting_for_100_continue = False
    cycle.transport.write(data)
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True


def _is_simple(cycle: RequestResponseCycle) -> bool:
    """Whether uvicorn would write head and body at once, and nothing else: no line in its log, and no end after it."""
    return (
        cycle.keep_alive
        and not cycle.access_log
        and not cycle.disconnected
        and not cycle.flow.write_paused
        and cycle.scope["method"] != "HEAD"
    )
