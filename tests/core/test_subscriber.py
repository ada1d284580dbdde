"""core/subscriber.py: the queue and its bounds."""

from __future__ import annotations

from collections.abc import Callable

from relay.core.subscriber import MAX_QUEUE_BYTES, MAX_QUEUE_FRAMES, Batch, Frame, Subscriber


def live(position: int = 0) -> Subscriber:
    subscriber = Subscriber("s1", "e1", position)
    subscriber.live = True
    return subscriber


def a_batch(*answers: tuple[int, bytes]) -> Batch:
    return Batch(answers[0][0] - 1, [(seq, Frame(data)) for seq, data in answers])


def drained(subscriber: Subscriber) -> list[bytes]:
    return [frame.data for frame in subscriber.take()]


def test_frames_come_out_in_the_order_in_which_they_went_in() -> None:
    subscriber = live()
    assert subscriber.offer(a_batch((1, b"one")))
    subscriber.notify(Frame(b"ping"))
    assert subscriber.offer(a_batch((2, b"two")))
    assert drained(subscriber) == [b"one", b"ping", b"two"]


def test_what_was_read_from_the_log_already_is_not_queued_again() -> None:
    subscriber = live(position=5)
    assert subscriber.offer(a_batch((5, b"five")))
    assert subscriber.offer(a_batch((6, b"six")))
    assert subscriber.offer(a_batch((4, b"four"), (5, b"five"), (8, b"eight")))
    assert drained(subscriber) == [b"six", b"eight"]


def test_a_batch_is_written_at_once_if_that_can_be_done_and_nothing_is_queued_before_it() -> None:
    subscriber = live()
    written: list[Batch] = []
    subscriber.writer = lambda batch: batch.last != 2 and (written.append(batch) or True)  # type: ignore[func-returns-value]
    batches = [a_batch((seq, b"%d" % seq)) for seq in (1, 2, 3)]
    assert all(map(subscriber.offer, batches))
    assert (written, drained(subscriber)) == (batches[:1], [b"2", b"3"])
    assert all(map(subscriber.offer, batches))  # all of them have been passed on
    assert (written, drained(subscriber), subscriber.position) == (batches[:1], [], 3)


def test_a_batch_is_queued_whole_or_not_at_all() -> None:
    subscriber = live()
    assert subscriber.offer(a_batch((1, b"one")))
    assert not subscriber.offer(a_batch(*((seq, b"x") for seq in range(2, MAX_QUEUE_FRAMES + 2))))
    assert drained(subscriber) == [b"one"]


def test_the_queue_is_bounded_in_frames() -> None:
    subscriber = live()
    assert all(subscriber.offer(a_batch((n, b"x"))) for n in range(1, MAX_QUEUE_FRAMES + 1))
    assert not subscriber.offer(a_batch((MAX_QUEUE_FRAMES + 1, b"x")))
    subscriber.take()
    assert subscriber.offer(a_batch((MAX_QUEUE_FRAMES + 1, b"x")))


def test_the_queue_is_bounded_in_bytes_but_takes_one_frame_of_any_size() -> None:
    subscriber = live()
    assert subscriber.offer(a_batch((1, b"x" * (MAX_QUEUE_BYTES + 1))))
    assert not subscriber.offer(a_batch((2, b"x")))
    subscriber.take()
    assert subscriber.offer(a_batch((2, b"x")))


def test_a_queue_over_its_bound_has_room_for_nothing() -> None:
    subscriber = live()
    assert subscriber.offer(a_batch((1, b"x" * (MAX_QUEUE_BYTES + 1))))
    assert subscriber.offer(a_batch((1, b"x")))


def test_a_ping_without_room_is_dropped() -> None:
    subscriber = live()
    subscriber.offer(a_batch((1, b"x" * MAX_QUEUE_BYTES)))
    subscriber.notify(Frame(b"ping"))
    assert len(drained(subscriber)) == 1


def test_whoever_serves_it_is_told_of_a_frame_a_change_of_state_and_the_end() -> None:
    acts: list[Callable[[Subscriber], object]] = [
        lambda s: s.offer(a_batch((1, b"x"))),
        lambda s: s.fall_behind("e1", 3),
        lambda s: s.close(1012, "restart"),
    ]
    for act in acts:
        subscriber = live()
        told: list[bool] = []
        subscriber.waker = lambda told=told: told.append(True)
        act(subscriber)
        assert told == [True]


def test_the_first_close_counts() -> None:
    subscriber = live()
    subscriber.close(4404, "session deleted")
    subscriber.close(1012, "restart")
    assert (subscriber.close_code, subscriber.close_reason) == (4404, "session deleted")


def test_falling_behind_never_moves_the_position_back() -> None:
    subscriber = live(position=7)
    subscriber.fall_behind("e1", 5)
    assert (subscriber.live, subscriber.position) == (False, 7)
    subscriber.fall_behind("e1", 9)
    assert subscriber.position == 9


def test_a_frame_is_decoded_once() -> None:
    frame = Frame("é".encode())
    assert frame.text == "é"
    assert frame.text is frame.text
