"""Tells which ids are surely new, without a look into the journal or the tables: those of most messages are.

A filter with one hash: every id has a place among a few million, and leaves its mark there when it is used, one of 254.
Where there is none, or somebody else's, the id has not been. Where two marks met, nobody can tell any more. Nothing of
it is kept in the file, so it only speaks of sessions that were created after it was made; the ids of all others are
looked up. Only the writer's thread uses it.
"""

from __future__ import annotations

PLACES = 2**23
"""A byte each."""

MOST_IDS = PLACES // 4
"""With more, one new id in forty would come to a place where two have met."""

MARKS = 254
MANY = 255
"""The marks are 1 … 254; 255 stands where two of them met."""

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
        number = hash(message)
        there = self._marks[number % PLACES]
        return message[0] < self._first_session or there in (_mark(number), MANY)

    def use(self, message: Id) -> bool:
        """The same; from now on it has been used."""
        if message[0] < self._first_session:
            return True
        number = hash(message)
        place, mark = number % PLACES, _mark(number)
        there = self._marks[place]
        if there in (mark, MANY):
            return True
        self._marks[place] = MANY if there else mark
        self._count += 1
        return False

    def renew(self, next_session: int) -> None:
        """Begin anew with the sessions from this one on, of which there are none yet, if there are too many marks."""
        if self._count > MOST_IDS:
            self._first_session = next_session
            self._marks = bytearray(PLACES)
            self._count = 0


def _mark(number: int) -> int:
    """From other bits of the hash than the place."""
    return (number >> 32) % MARKS + 1
