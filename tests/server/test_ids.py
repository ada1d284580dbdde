"""server/ids.py: the ids that the server gives."""

from __future__ import annotations

import uuid

from relay.server.ids import IDS_AT_A_TIME, Ids


def test_each_is_another_uuid_v4() -> None:
    new_id = Ids()
    ids = [new_id() for _ in range(10 * IDS_AT_A_TIME + 1)]
    assert len(set(ids)) == len(ids)
    for each in ids:
        parsed = uuid.UUID(each)
        assert (parsed.version, parsed.variant, str(parsed)) == (4, uuid.RFC_4122, each)


def test_all_other_bits_are_random() -> None:
    new_id = Ids()
    numbers = [uuid.UUID(new_id()).int for _ in range(1000)]
    fixed = [bit for bit in range(128) if len({number >> bit & 1 for number in numbers}) == 1]
    assert len(fixed) == 6  # four of the version, two of the variant
