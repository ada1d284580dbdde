"""Tells which ids are surely new, without a look into the journal or the tables: those of most messages are.

A Bloom filter with one hash: every id has a place among a few million, and leaves a mark there when it is used. Where
there is no mark, no id has been. Nothing of it is kept in the file, so it only speaks of sessions that were created
after it was made; the ids of all others are looked up. Only the writer's thread uses it.
"""

from __future__ import annotations

PLACES = 2**21
"""A byte each. To pick out a bit would cost more than the memory is worth."""

MOST_IDS = PLACES // 4
"""With more, a quarter of all new ids would meet somebody else's mark."""

Id = tuple[int, str]
"""A session's id and a message_id, of a prompt or a response."""


class Seen:
    """The marks of the ids of every session from this one on."""

    def __init__(self, first_session: int) -> None:
        self._first_session = first_session
        self._marks = bytearray(PLACES)
        self._count = 0

    def perhaps(self, message: Id) -> bool:
        """Whether this id may have been used."""
        return message[0] < self._first_session or self._marks[hash(message) % PLACES] != 0

    def use(self, message: Id) -> bool:
        """The same; from now on it has been used."""
        place = hash(message) % PLACES
        if message[0] < self._first_session or self._marks[place]:
            return True
        self._marks[place] = 1
        self._count += 1
        return False

    def renew(self, next_session: int) -> None:
        """Begin anew with the sessions from this one on, of which there are none yet, if there are too many marks."""
        if self._count > MOST_IDS:
            self._first_session = next_session
            self._marks = bytearray(PLACES)
            self._count = 0
