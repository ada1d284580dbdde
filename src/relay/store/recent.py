"""A bounded memory of what was used last."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A dictionary that forgets, half of it at a time, what was not used for longest. No value is None.

    Not the oldest one for each new one: to find its first, a dict walks over all that it has dropped before.
    """

    __slots__ = ("_half", "_new", "_old")

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """What is remembered; it counts as used."""
        value = self._new.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.set(key, value)
        return value

    def set(self, key: K, value: V) -> None:
        """Remember it."""
        if len(self._new) >= self._half and key not in self._new:
            self._old, self._new = self._new, {}
        self._new[key] = value

    def forget(self, key: K) -> None:
        """Remember nothing of it."""
        self._new.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._new = {}
        self._old = {}
