"""server/lookout.py: when the loop is kept awake, and that it may sleep in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from relay.server.lookout import CLOSE_SECONDS, LOOK_SECONDS, Lookout
from tests.clock import Clock


class Loop:
    """Notes what it is to call."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.due.append(partial(callback, *args))

    def turn(self) -> bool:
        """Whether there was anything to call: if not, it would sleep."""
        due, self.due = self.due, []
        for call in due:
            call()
        return bool(due)


def test_a_single_answer_keeps_nobody_awake() -> None:
    loop, clock = Loop(), Clock()
    lookout = Lookout(clock, cpus=2)
    for _ in range(3):
        lookout.answered(loop.call_soon)
        assert not loop.turn()
        clock.now += CLOSE_SECONDS * 1.01


def test_answers_that_follow_each_other_keep_the_loop_awake_for_a_moment() -> None:
    loop, clock = Loop(), Clock()
    lookout = Lookout(clock, cpus=2)
    lookout.answered(loop.call_soon)
    for _ in range(2):
        for _ in range(3):
            clock.now += LOOK_SECONDS / 2
            lookout.answered(loop.call_soon)
            assert len(loop.due) == 1
            assert loop.turn()
        clock.now += LOOK_SECONDS * 1.01
        assert loop.turn()
        assert not loop.turn()


def test_with_a_single_processor_nobody_is_kept_from_it() -> None:
    loop = Loop()
    lookout = Lookout(Clock(), cpus=1)
    lookout.answered(loop.call_soon)
    lookout.answered(loop.call_soon)
    assert not loop.turn()
