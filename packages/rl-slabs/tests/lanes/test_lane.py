import sys
import threading
from contextlib import contextmanager

import pytest
import torch

from rl_slabs import Lane, Lanes, Slab, Window
from rl_slabs.lanes.lane import RESERVED


@pytest.fixture
def lane(schema):
    return Lanes(Slab.private(schema, 7)).claim()


def test_a_span_begins_where_the_last_publication_ended(lane):
    assert lane.reserve(3) == (slice(0, 3), range(3))
    lane.publish(3)
    assert lane.reserve(2) == (slice(3, 5), range(3, 5))


def test_a_span_closes_the_ring_with_two_ends(lane):
    lane.reserve(5)
    lane.publish(5)
    rows, numbers = lane.reserve(4)
    assert rows.tolist() == [5, 6, 0, 1]
    assert numbers == range(5, 9)


def test_a_span_of_the_second_lane_lies_behind_the_first(schema):
    slab = Slab.private(schema, 8, lanes=2)
    lane = [Lanes(slab).claim() for _ in range(2)][1]
    lane.reserve(3)
    lane.publish(3)
    rows, numbers = lane.reserve(3)
    assert rows.tolist() == [7, 4, 5]
    assert list(numbers) == [(1 << 48) + row for row in (3, 4, 5)]


def test_a_span_can_be_published_piece_by_piece(lane):
    lane.reserve(5)
    lane.publish(2)
    lane.publish(3)
    assert lane.published == 5


def test_reserving_again_gives_the_same_rows(lane):
    lane.reserve(5)
    lane.publish(1)
    assert lane.reserve(2).numbers == range(1, 3)


def test_reserved_count_never_decreases(schema):
    slab = Slab.private(schema, 7)
    lane = Lanes(slab).claim()
    lane.reserve(5)
    lane.reserve(2)
    assert slab.words[0, RESERVED] == 5
    lane.publish(2)
    lane.reserve(1)
    assert slab.words[0, RESERVED] == 5


@pytest.mark.parametrize("count", [0, -1, 8])
def test_a_span_larger_than_the_lane_or_empty_is_refused(lane, count):
    with pytest.raises(ValueError, match=f"1 to 7 rows, the capacity of a lane: got {count}"):
        lane.reserve(count)
    assert lane.published == 0


def test_more_than_is_reserved_cannot_be_published(lane):
    lane.reserve(3)
    lane.publish(1)
    for count in (3, -1):
        with pytest.raises(ValueError, match=f"2 rows are reserved.*cannot publish {count}"):
            lane.publish(count)
    assert lane.published == 1


def test_a_lane_is_refused_to_every_other_thread(lane):
    said = []

    def write():
        try:
            lane.reserve(1)
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert "every thread and every forked process claims its own" in said[0]


def test_a_lane_is_refused_to_a_forked_child(forked, schema):
    slab = Slab.shared(schema, 7)
    lane = Lanes(slab).claim()

    def write(pipe):
        try:
            lane.reserve(1)
        except RuntimeError as error:
            pipe.send(str(error))

    assert "claims its own" in forked(write).receive()


def test_a_released_lane_is_refused(lane):
    lane.release()
    with pytest.raises(RuntimeError, match="is now held by no thread"):
        lane.reserve(1)


def test_the_lane_of_a_closed_slab_is_refused(schema):
    with Slab.private(schema, 7) as slab:
        lane = Lanes(slab).claim()
    for use in (lambda: lane.reserve(1), lambda: lane.publish(0), lane.release):
        with pytest.raises(ValueError, match="this slab is closed"):
            use()


def test_the_side_word_is_kept_for_the_next_writer(schema):
    slab = Slab.private(schema, 7)
    lane = Lanes(slab).claim()
    lane.side = -5
    lane.release()
    assert Lanes(slab).claim().side == -5


def test_a_span_that_was_given_back_hides_no_rows(schema):
    slab = Slab.private(schema, 5)
    lanes = Lanes(slab)
    lane = lanes.claim()
    lane.reserve(5)
    lane.publish(5)
    lane.reserve(3)
    assert (len(lanes.window()), lane.lost) == (2, 3)
    lane.cancel()
    assert (len(lanes.window()), lane.lost) == (5, 0)
    lane.reserve(3)
    lane.publish(1)
    with pytest.raises(RuntimeError, match="part of the span is published"):
        lane.cancel()


def test_giving_a_span_back_keeps_what_a_killed_writer_had_reserved(schema):
    slab = Slab.private(schema, 5)
    lanes = Lanes(slab)
    lane = lanes.claim()
    lane.reserve(5)
    lane.publish(5)
    lane.reserve(4)  # and then it ended; the next owner continues
    lane.release()
    after = lanes.claim()
    after.reserve(2)
    after.cancel()
    assert len(lanes.window()) == 1


def test_a_lane_begins_anew_at_its_beginning_with_numbers_never_used(schema):
    slab = Slab.private(schema, 10, lanes=2)
    lanes = Lanes(slab)
    lane = lanes.claim()
    for count in (4, 3):
        lane.reserve(count)
        lane.publish(count)
    lane.restart()
    assert (len(lanes.window()), lane.published, lane.floor, lane.side) == (0, 10, 10, 3)
    assert lane.reserve(2) == (slice(0, 2), range(10, 12))
    lane.restart()
    assert (lane.reserve(1).numbers, lane.side) == (range(10, 11), 3)


def test_the_lane_of_a_thread_is_known_until_it_is_given_back(schema):
    lanes = Lanes(Slab.private(schema, 5))
    assert lanes.held() is None
    lane = lanes.claim()
    assert lanes.held() is lane
    lane.release()
    assert lanes.held() is None


class Interrupt(BaseException):
    """What Ctrl-C raises, but for its name."""


@contextmanager
def interrupted_at(place, function=Lane.restart):
    """Raise before the n-th executed line of a function."""
    lines = []

    def trace(frame, event, _):
        if frame.f_code is function.__code__ and event == "line":
            lines.append(frame.f_lineno)
            if len(lines) > place:
                raise Interrupt
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(former)


def test_a_restart_that_is_interrupted_anywhere_is_finished_by_the_next_claim(schema):
    """Its writer holds the lane still, and no number between floor and publication is given out."""
    finished = False
    for place in range(20):
        slab = Slab.private(schema, 7)
        lanes = Lanes(slab)
        lane = lanes.claim()
        lane.reserve(3), lane.publish(3)
        try:
            with interrupted_at(place):
                lane.restart()
            finished = True
        except Interrupt:
            assert lane.owned_by_this_thread()
        begin = lanes.claim().reserve(2).numbers.start
        assert begin in (3, 7)
        assert (begin == 3) == (len(lanes.window()) == 3)
        lane.publish(2)
        assert lanes.accept(torch.tensor([begin, begin + 1])).all()
        assert lane.published - lane.side == 5
    assert finished


def test_a_restoration_that_is_interrupted_anywhere_shows_all_rows_or_none(schema):
    """Neither the former counters nor the new ones let rows be read together with the others."""
    finished = False
    for place in range(40):
        lanes = Lanes(Slab.private(schema, 7))
        lane = lanes.claim()
        lane.reserve(6), lane.publish(6)
        lane.restart()
        lane.release()
        try:
            with interrupted_at(place, Lanes.restore):
                lanes.restore([5], [2])
            finished = True
        except Interrupt:
            pass
        window = lanes.window()
        assert window in (Window((2,), (3,)), Window(window.first, (0,)))
        lanes.claim().reserve(2), lanes.claim().publish(2)
        assert len(lanes.window()) in (2, 5)
    assert finished
