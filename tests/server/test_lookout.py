"""server/lookout.py: when the loop is kept awake, where that pays, and that it may sleep in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import Mock

from relay.server.lookout import CLOSE_SECONDS, LOOK_SECONDS, SETTLED_TURNS, TRIALS, TRIED_ANSWERS, WORTH, Lookout
from tests.clock import Clock

ASLEEP = 50e-6
"""What an answer costs in these tests if the process falls asleep before it."""

PAUSE = CLOSE_SECONDS * 1.01


class Machine:
    """An event loop on a processor where an answer costs so many times as much if the process has stayed awake."""

    def __init__(self, times: float, cpus: int = 2) -> None:
        self._clock = Clock()
        self._spent = Clock()
        self._times = times
        self._due: list[Callable[[], object]] = []
        self._lookout = Lookout(self._clock, self._spent, cpus)

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._due.append(partial(callback, *args))

    def is_awake(self, after: float = 0.0) -> bool:
        """Whether it still has something to call after so long."""
        self._clock.now += after
        due, self._due = self._due, []
        for call in due:
            call()
        assert len(self._due) <= 1
        return bool(self._due)

    def answer(self, answers: int = 1, *, after: float = LOOK_SECONDS * 0.3) -> bool:
        """Answer something that comes so long after the last; whether it then stays awake."""
        self._spent.now += answers * ASLEEP * (self._times if self.is_awake(after) else 1)
        if self._lookout.answered(answers):
            self._lookout.look(self.call_soon)
        return self.is_awake(LOOK_SECONDS * 0.6)

    def try_both(self, answers: int = 1, *, times: Sequence[float] = (), pause_costs: float = 0.0) -> None:
        """A conversation that is just long enough to find out what pays, of so many answers a turn.

        `times`: what the processor is like in each trial, if not always the same. `pause_costs`: what is done in a
        pause in each of them.
        """
        turns = TRIED_ANSWERS // answers
        assert not self.answer(answers, after=PAUSE)
        for trial in range(TRIALS):
            if trial > 0:  # the last answer of the trial before
                assert not self.answer(answers)
            self._times = times[trial] if times else self._times
            if pause_costs:
                self._spent.now += pause_costs
                assert not self.answer(answers, after=PAUSE)
            assert not any(self.answer(answers) for _ in range(turns - 1))
            assert all(self.answer(answers) for _ in range(turns))

    def converse(self) -> list[bool]:
        """The same for as long as what was found holds; when it has stayed awake."""
        return [self.answer() for _ in range(SETTLED_TURNS)]


def test_it_stays_awake_where_that_costs_no_more_than_it_is_worth() -> None:
    machine = Machine(times=WORTH * 0.99)
    machine.try_both()
    assert all(machine.converse())


def test_it_falls_asleep_where_to_stay_awake_costs_more() -> None:
    machine = Machine(times=WORTH * 1.01)
    machine.try_both()
    assert not any(machine.converse())


def test_where_it_does_not_pay_not_even_the_clock_is_looked_at() -> None:
    machine = Machine(times=2.0)
    machine.try_both()
    machine.answer()
    machine._lookout._clock = Mock(side_effect=AssertionError)
    machine.answer()


def test_both_are_tried_again_after_a_while() -> None:
    machine = Machine(times=2.0)
    for times in (0.5, 2.0, 0.5):
        machine._times = times
        machine.try_both()
        assert machine.converse() == [times < 1] * SETTLED_TURNS


def test_half_of_the_trials_may_be_disturbed() -> None:
    few, most = TRIALS // 2, TRIALS // 2 + 1
    machine = Machine(times=1.0)
    machine.try_both(times=[0.9, *[9.0] * few, *[0.9] * (most - 1)])
    assert all(machine.converse())
    machine.try_both(times=[1.1, *[0.1] * few, *[1.1] * (most - 1)])
    assert not any(machine.converse())


def test_a_clock_that_is_too_coarse_to_show_anything_does_no_harm() -> None:
    machine = Machine(times=2.0)
    machine._lookout._cpu_clock = Clock()
    machine.try_both()
    assert machine.answer()


def test_each_of_several_answers_in_a_turn_counts() -> None:
    machine = Machine(times=0.5)
    machine.try_both(answers=2)
    assert all(machine.converse())


def test_it_is_awake_only_for_a_moment() -> None:
    machine = Machine(times=0.5)
    machine.try_both()
    assert machine.answer()
    assert machine.is_awake(after=LOOK_SECONDS * 0.39)
    assert not machine.is_awake(after=LOOK_SECONDS * 0.02)


def test_who_comes_once_in_a_while_keeps_nobody_awake_and_shows_nothing() -> None:
    machine = Machine(times=0.5)
    for _ in range(3 * TRIALS * TRIED_ANSWERS):
        assert not machine.answer(after=PAUSE)
    machine.try_both()
    assert machine.answer()
    assert not machine.answer(after=PAUSE)


def test_what_is_done_in_a_pause_is_nobodys_cost() -> None:
    machine = Machine(times=2.0)
    machine.try_both(pause_costs=1.0)
    assert not any(machine.converse())


def test_with_a_single_processor_nobody_is_kept_from_it() -> None:
    machine = Machine(times=0.5, cpus=1)
    assert not any(machine.answer() for _ in range(3 * TRIALS * TRIED_ANSWERS))
