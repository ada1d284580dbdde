"""A bounded memory of what was used last."""

from __future__ import annotations

from relay.store.recent import Recent


def test_what_is_used_again_and_again_is_not_forgotten() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.set("used", 1)
    recent.set("unused", 1)
    for n in range(100):
        recent.set(f"other {n}", n)
        assert recent.get("used") == 1
    assert recent.get("unused") is None


def test_no_more_is_remembered_than_was_asked_for() -> None:
    recent: Recent[int, int] = Recent(10)
    for n in range(1000):
        recent.set(n, n)
        assert recent.get(n) == n
        assert len(recent._new) + len(recent._old) <= 10
    assert recent.get(900) is None


def test_a_new_value_takes_the_place_of_an_old_one() -> None:
    recent: Recent[str, int] = Recent(4)
    for n, key in enumerate("aabcaabcd"):
        recent.set(key, n)
        assert recent.get(key) == n


def test_what_is_to_be_forgotten_is() -> None:
    recent: Recent[str, int] = Recent(4)
    for key in "abc":
        recent.set(key, 1)
    recent.forget("a")
    recent.forget("c")
    assert [recent.get(key) for key in "abc"] == [None, 1, None]
    recent.clear()
    assert recent.get("b") is None
