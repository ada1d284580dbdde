"""server/framing.py: frames without a network. What a whole server does with them is in tests/protocol/websocket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.frames import Opcode as TheirOpcode

from relay.server.framing import FrameError, FrameReader, Opcode, close_frame, frame, read_close


def masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A client's frame, made by somebody else."""
    return Frame(TheirOpcode(opcode), payload, fin).serialize(mask=True, extensions=[])


def read_all(data: bytes, size: int, max_bytes: int = 65_536) -> list[tuple[Opcode, bytes]]:
    reader = FrameReader(max_bytes)
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return [message for piece in pieces for message in reader.read(piece) if message is not None]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.lists(st.binary(max_size=300), min_size=1, max_size=4)), max_size=5),
    st.integers(1, 700),
)
def test_messages_arrive_whole_however_they_were_cut(messages: list[tuple[int, list[bytes]]], size: int) -> None:
    data = b""
    for kind, parts in messages:
        for number, part in enumerate(parts):
            data += masked(kind if number == 0 else 0, part, fin=number == len(parts) - 1)
            data += masked(9, b"between")
    got = read_all(data, size)
    assert [message for message in got if message[0] is not Opcode.PING] == [
        (Opcode(kind), b"".join(parts)) for kind, parts in messages
    ]
    assert sum(1 for opcode, _ in got if opcode is Opcode.PING) == sum(len(parts) for _, parts in messages)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_noise_is_either_read_or_refused(data: bytes, size: int) -> None:
    try:
        read_all(data, size)
    except FrameError as error:
        assert error.code in (1002, 1009)  # noqa: PT017


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_frames_are_written_as_others_write_them(size: int) -> None:
    payload = b"x" * size
    assert frame(Opcode.TEXT, payload) == Frame(TheirOpcode.TEXT, payload).serialize(mask=False, extensions=[])


def test_a_message_over_the_bound_is_refused_by_its_length_alone() -> None:
    with pytest.raises(FrameError) as refused:
        read_all(masked(1, b"x" * 101)[:2], 2, max_bytes=100)
    assert refused.value.code == 1009
    with pytest.raises(FrameError) as refused:
        read_all(masked(1, b"x" * 60, fin=False) + masked(0, b"x" * 41), 1_000, max_bytes=100)
    assert refused.value.code == 1009


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1005), (b"\x03\xe8", 1000), (b"\x0f\xa0bye", 4000), (b"\x03\xe8\xc3\xa9", 1000)]
)
def test_close_codes_are_read(payload: bytes, code: int) -> None:
    assert read_close(payload) == code


@pytest.mark.parametrize(("payload", "code"), [(b"\x03", 1002), (b"\x03\xee", 1002), (b"\x03\xe8\xff", 1007)])
def test_wrong_close_frames_are_refused(payload: bytes, code: int) -> None:
    with pytest.raises(FrameError) as refused:
        read_close(payload)
    assert refused.value.code == code


def test_a_close_frame_is_never_too_long() -> None:
    assert len(close_frame(1011, "x" * 500)) == 127
    assert close_frame(1005, "") == b"\x88\x00"
