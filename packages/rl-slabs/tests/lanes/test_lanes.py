import pickle
import threading

import pytest
import torch

from rl_slabs import Lanes, Slab
from rl_slabs.lanes.lane import BEAT, LANE_SHIFT, PLACE, RESERVED, STARTED


def write(lane, slab, numbered, count):
    span = lane.reserve(count)
    slab.write(span.rows, numbered(span.numbers))
    lane.publish(count)
    return span.numbers


def test_a_window_holds_the_last_rows_of_every_lane(schema, numbered):
    slab = Slab.private(schema, 10, lanes=2)
    first, second = (Lanes(slab).claim() for _ in range(2))
    write(first, slab, numbered, 4)
    write(first, slab, numbered, 3)
    write(second, slab, numbered, 2)
    window = Lanes(slab).window()
    base = 1 << LANE_SHIFT
    assert window.numbers(torch.arange(len(window))).tolist() == [2, 3, 4, 5, 6, base, base + 1]


def test_a_guard_leaves_the_oldest_rows_out(schema, numbered):
    slab = Slab.private(schema, 5)
    lanes = Lanes(slab)
    write(lanes.claim(), slab, numbered, 3)
    assert len(lanes.window(guard=2)) == 3
    write(lanes.claim(), slab, numbered, 4)
    window = lanes.window(guard=2)
    assert (window.first, len(window)) == ((4,), 3)


def test_rows_that_are_overwritten_during_a_gather_are_not_accepted(schema, numbered):
    slab = Slab.private(schema, 5)
    lanes = Lanes(slab)
    write(lanes.claim(), slab, numbered, 5)
    numbers = lanes.window().numbers(torch.arange(5))
    lanes.claim().reserve(2)
    assert lanes.accept(numbers).tolist() == [False, False, True, True, True]


def test_numbers_that_nobody_published_are_not_accepted(schema, numbered):
    slab = Slab.private(schema, 10, lanes=2)
    lanes = Lanes(slab)
    write(lanes.claim(), slab, numbered, 3)
    strange = torch.tensor([-1, 0, 2, 3, 1 << LANE_SHIFT, 7 << LANE_SHIFT, -(1 << 62)])
    assert lanes.accept(strange).tolist() == [False, True, True, False, False, False, False]


def test_lanes_refuse_other_dtypes_and_other_memory(schema):
    lanes = Lanes(Slab.private(schema, 5))
    for numbers, said in ((torch.zeros(3), "got torch.float32"), ([1], "got <class 'list'>")):
        for use in (lanes.rows, lanes.accept):
            with pytest.raises(TypeError, match=said):
                use(numbers)
    with pytest.raises(TypeError, match="expected a Slab, got RowSchema"):
        Lanes(schema)


def test_emptied_rows_are_not_accepted_and_later_ones_are(schema, numbered):
    slab = Slab.private(schema, 5)
    lanes = Lanes(slab)
    old = write(lanes.claim(), slab, numbered, 4)
    lanes.empty()
    assert len(lanes.window()) == 0
    new = write(lanes.claim(), slab, numbered, 2)
    assert lanes.accept(torch.tensor([*old, *new])).tolist() == [False] * 4 + [True] * 2


def test_threads_claim_one_lane_each(schema):
    slab = Slab.private(schema, 6, lanes=3)
    lanes = Lanes(slab)
    found, barrier = [], threading.Barrier(2)

    def claim():
        found.append({lanes.claim().number, lanes.claim().number})
        barrier.wait(10)

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(sorted, [*found, {lanes.claim().number}])) in (
        [[0], [1], [2]],
        [[0], [0], [1]],
    )


def test_holders_are_named_when_every_lane_is_held(schema):
    slab = Slab.private(schema, 6, lanes=2)
    for _ in range(2):
        Lanes(slab).claim()
    with pytest.raises(RuntimeError, match=r"all 2 lanes are held: .*thread=\d+.*more lanes"):
        Lanes(slab).claim()


def test_used_lanes_are_claimed_before_unused_ones(schema, numbered):
    slab = Slab.private(schema, 6, lanes=3)
    first, second = (Lanes(slab).claim() for _ in range(2))
    write(second, slab, numbered, 1)
    for lane in (first, second):
        lane.release()
    assert [Lanes(slab).claim().number for _ in range(3)] == [1, 0, 2]


def test_a_reused_number_with_another_start_time_is_a_dead_owner(schema, numbered):
    slab = Slab.shared(schema, 5)
    old = Lanes(slab).claim()
    write(old, slab, numbered, 3)
    old.reserve(2)
    slab.words[0, STARTED] -= 1
    lanes = Lanes(slab)
    assert lanes.states()[0].standing == "gone"
    new = lanes.claim()
    assert (new.published, slab.words[0, RESERVED]) == (3, 5)
    assert new.reserve(1).numbers == range(3, 4)


def test_a_lane_of_another_container_is_taken_only_when_it_was_silent(schema):
    slab = Slab.shared(schema, 5)
    Lanes(slab).claim()
    slab.words[0, PLACE] ^= 1
    with pytest.raises(RuntimeError, match="standing='elsewhere'"):
        Lanes(slab).claim(stale_after_s=1000)
    assert Lanes(slab).claim(stale_after_s=0).number == 0


def test_a_forked_child_claims_another_lane_than_its_parent(forked, schema):
    slab = Slab.shared(schema, 6, lanes=2)
    lanes = Lanes(slab)
    assert lanes.claim().number == 0
    assert forked(lambda pipe: pipe.send(lanes.claim().number)).receive() == 1


def test_lanes_go_where_their_slab_goes(schema, numbered):
    slab = Slab.shared(schema, 6, lanes=2)
    write(Lanes(slab).claim(), slab, numbered, 3)
    other = pickle.loads(pickle.dumps(Lanes(slab)))
    assert len(other.window()) == 3


def test_restored_counters_are_those_of_the_lanes(schema, numbered):
    slab = Slab.private(schema, 10, lanes=2)
    lanes = Lanes(slab)
    lanes.restore(published=[8, 0], floor=[4, 0])
    assert lanes.window().first == (4, 1 << LANE_SHIFT)
    assert write(lanes.claim(), slab, numbered, 2) == range(8, 10)


def test_counters_that_cannot_be_are_refused(schema):
    lanes = Lanes(Slab.private(schema, 10, lanes=2))
    with pytest.raises(ValueError, match="2 lanes need as many counters, got 1 and 2"):
        lanes.restore([1], [0, 0])
    with pytest.raises(ValueError, match="0 <= floor <= published must hold"):
        lanes.restore([1, 3], [0, 4])
    lanes.claim()
    with pytest.raises(RuntimeError, match="Restore before they claim"):
        lanes.restore([1, 3], [0, 0])


def test_states_say_who_holds_and_what_is_lost(schema, numbered):
    slab = Slab.private(schema, 10, lanes=2)
    lanes = Lanes(slab)
    write(lanes.claim(), slab, numbered, 4)
    lanes.claim().reserve(3)
    held, free = lanes.states()
    assert (held.standing, held.thread) == ("held", threading.get_native_id())
    assert (held.published, held.floor, held.lost) == (4, 0, 3)
    assert 0 <= held.silent_s < 60
    assert (free.standing, free.thread, free.published) == ("free", 0, 0)


def test_rows_that_a_writer_lost_take_room_where_the_next_one_chooses(schema, numbered):
    slab = Slab.private(schema, 10, lanes=2)
    lanes = Lanes(slab)
    lane = lanes.claim()
    write(lane, slab, numbered, 1)
    lane.reserve(3)
    lane.release()  # as if its writer was killed: 4 of 5 places are used
    assert lanes.claim(count=2).number == 1


@pytest.mark.parametrize("clock", ["running", "standing"])
def test_every_reservation_and_claim_moves_the_lanes(schema, numbered, monkeypatch, clock):
    if clock == "standing":
        monkeypatch.setattr("time.monotonic_ns", lambda: 70)
    slab = Slab.private(schema, 10, lanes=2)
    lanes, lane = Lanes(slab), None

    def moved(act):
        before = lanes.moment()
        assert lanes.unmoved(before)
        act()
        return not lanes.unmoved(before)

    assert moved(lanes.claim)
    lane = lanes.claim()
    assert moved(lambda: lane.reserve(5))
    lane.release()  # and the span is as if its writer was killed
    lane = lanes.claim()
    assert moved(lambda: lane.reserve(2))  # inside what is reserved already
    assert moved(lambda: (lane.reserve(2), lane.cancel()))
    assert moved(lambda: lane.publish(0))
    assert moved(lambda: (lane.release(), lanes.claim()))
    assert not moved(lambda: (lanes.claim(), slab.read(0), lanes.window(), lanes.states()))
    lane.release()
    lanes.restore([8, 0], [4, 0])
    assert moved(lambda: lanes.restore([8, 0], [4, 0]))


def test_a_lane_of_another_clock_begins_at_the_time_of_this_one(schema):
    slab = Slab.shared(schema, 5)
    Lanes(slab).claim().release()
    slab.words[0, PLACE] ^= 1 << 40  # another boot, whose clock had come further
    slab.words[0, BEAT] = 1 << 61
    lanes = Lanes(slab)
    before = lanes.moment()
    lanes.claim()
    assert slab.words[0, BEAT] < 1 << 60
    assert not lanes.unmoved(before)


def test_a_writer_that_is_alone_uses_every_lane(schema, numbered):
    slab = Slab.private(schema, 12, lanes=3)
    lanes = Lanes(slab)
    order = []
    for _ in range(9):
        lane = lanes.claim(2)
        write(lane, slab, numbered, 2)
        order.append(lane.number)
    assert order == [0, 0, 1, 1, 2, 2, 0, 0, 1]
    assert len(lanes.window()) == 12
    assert [state.standing for state in lanes.states()].count("held") == 1


def test_lanes_with_room_are_used_before_rows_are_overwritten(schema, numbered):
    slab = Slab.private(schema, 12, lanes=3)
    first, second = Lanes(slab), Lanes(slab)
    write(first.claim(4), slab, numbered, 4)
    write(second.claim(1), slab, numbered, 1)
    second.claim().release()
    assert first.claim(3).number == 1
    write(first.claim(3), slab, numbered, 3)
    assert first.claim(1).number == 2


def test_a_writer_keeps_its_lane_while_all_others_are_held(schema, numbered):
    slab = Slab.private(schema, 8, lanes=2)
    first, second = Lanes(slab), Lanes(slab)
    assert (first.claim(1).number, second.claim(1).number) == (0, 1)
    for _ in range(5):
        write(first.claim(3), slab, numbered, 3)
        assert first.claim(3).number == 0
    second.claim().release()
    write(first.claim(3), slab, numbered, 3)
    assert first.claim(3).number == 1


def test_newcomers_find_the_lane_that_was_given_back(schema, numbered):
    slab = Slab.private(schema, 9, lanes=3)
    alone = Lanes(slab)
    for _ in range(4):
        write(alone.claim(3), slab, numbered, 3)
    others = [Lanes(slab) for _ in range(2)]
    assert sorted(one.claim(3).number for one in (alone, *others)) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="all 3 lanes are held"):
        Lanes(slab).claim(3)


def test_writer_interrupted_between_two_lanes_holds_one(schema, numbered, monkeypatch):
    slab = Slab.private(schema, 8, lanes=2)
    lanes = Lanes(slab)
    write(lanes.claim(4), slab, numbered, 4)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lanes, "_end_of_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lanes.claim(4)
    assert [state.standing for state in lanes.states()] == ["held", "free"]
    assert lanes.claim(4).number == 1


def test_the_age_of_lanes_is_restored(schema, numbered):
    slab = Slab.private(schema, 9, lanes=3)
    lanes = Lanes(slab)
    for _ in range(4):
        write(lanes.claim(3), slab, numbered, 3)
    assert lanes.order() == [1, 2, 0]
    again = Lanes(Slab.private(schema, 9, lanes=3))
    again.restore([6, 3, 3], [3, 0, 0], order=lanes.order())
    assert again.order() == [1, 2, 0]
    assert again.claim(3).number == 1
