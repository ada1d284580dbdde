"""store/sqlite_seen.py: an id that was used is never taken for a new one."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from relay.store import sqlite_seen
from relay.store.sqlite_seen import MOST_IDS, PLACES, Id, Seen, _mark

ids = st.tuples(st.integers(1, 5), st.text(max_size=2))


def test_an_id_is_new_until_it_is_used() -> None:
    seen = Seen(first_session=1)
    assert not seen.perhaps((1, "p1"))
    assert not seen.use((1, "p1"))
    assert seen.perhaps((1, "p1"))
    assert seen.use((1, "p1"))


def ids_with_marks_of_their_own(count: int) -> list[Id]:
    marks = {_mark(hash((1, f"p{number}"))): (1, f"p{number}") for number in range(10 * count)}
    return list(marks.values())[:count]


def test_somebody_elses_mark_does_not_make_an_id_look_used() -> None:
    with patch.multiple(sqlite_seen, PLACES=1):
        one, other, third = ids_with_marks_of_their_own(3)
        seen = Seen(first_session=1)
        assert not seen.use(one)
        assert not seen.perhaps(other)
        assert not seen.use(other)
        assert seen.perhaps(one)
        assert seen.perhaps(other)
        assert seen.use(third)  # two have met there: nobody can tell any more


def test_most_new_ids_are_taken_for_new_even_when_it_is_full() -> None:
    with patch.multiple(sqlite_seen, PLACES=2**12):
        seen = Seen(first_session=1)
        for number in range(2**12 // (PLACES // MOST_IDS)):
            seen.use((1, f"p{number}"))
        taken_for_used = sum(seen.perhaps((1, f"new{number}")) for number in range(2**10))
        assert taken_for_used < 2**10 / 16  # 1 in 40 is to be expected


def test_of_sessions_that_are_older_nothing_is_known() -> None:
    seen = Seen(first_session=7)
    assert seen.perhaps((6, "p1"))
    assert seen.use((6, "p1"))
    assert not seen.perhaps((7, "p1"))


def test_of_those_nothing_is_noted() -> None:
    with patch.multiple(sqlite_seen, MOST_IDS=2):
        seen = Seen(first_session=7)
        for number in range(10):
            seen.use((6, f"p{number}"))
        seen.renew(8)
        assert not seen.perhaps((7, "p1"))


def test_it_begins_anew_when_it_is_full_and_only_then() -> None:
    with patch.multiple(sqlite_seen, MOST_IDS=2):
        seen = Seen(first_session=1)
        for used in ("p1", "p2"):
            seen.use((1, used))
            seen.renew(2)
        assert not seen.perhaps((1, "new"))
        seen.use((1, "p3"))
        seen.renew(2)
        assert seen.perhaps((1, "new"))
        assert not seen.perhaps((2, "p1"))


@given(st.lists(st.tuples(ids, st.booleans())))
def test_whatever_was_used_may_have_been_used(steps: list[tuple[tuple[int, str], bool]]) -> None:
    with patch.multiple(sqlite_seen, PLACES=16, MOST_IDS=8):
        seen, used, next_session = Seen(first_session=2), set(), 2
        for message, renew in steps:
            if message[0] < 2 or message in used:
                assert seen.perhaps(message)
            assert seen.use(message) >= (message in used)
            used.add(message)
            next_session = max(next_session, message[0] + 1)
            if renew:
                seen.renew(next_session)
            assert all(seen.perhaps(each) for each in used)
