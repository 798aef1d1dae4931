from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from rl_replay.testing import TrajectoryIndexMachine
from rl_replay.testing.index_machine import trajectories_in
from rl_replay.trajectories.index import TrajectoryIndex
from rl_replay.trajectories.tables import (
    BROKEN,
    JUMP,
    JUMP_START,
    PREVIOUS,
    START,
    TrajectoryTables,
)
from rl_slabs import Window

LANE = 1 << 48


def array(*numbers):
    return np.array(numbers, dtype=np.int64)


def interleaved(capacity, backs):
    """An index and its source, with `backs` appended one array after another."""
    index, stored = TrajectoryIndex(capacity), np.zeros(capacity, dtype=np.int32)
    for back in backs:
        first = index.indexed()
        index.append(first, np.array(back, dtype=np.int32))
        stored[np.arange(first, first + len(back)) % capacity] = back
    return index, stored


class Pieces(TrajectoryIndexMachine):
    """The same without rebuilding: pieces are the ones that rows joined when they came."""

    rebuild = None

    @invariant()
    def pieces_are_as_row_by_row(self):
        assert self.index.pieces == self.reference.pieces
        assert self.index.one_row_pieces == self.reference.one_row_pieces


TestTrajectoryIndex = TrajectoryIndexMachine.TestCase
TestTrajectoryIndex.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestPieces = Pieces.TestCase
TestPieces.settings = TestTrajectoryIndex.settings


def test_two_environments_side_by_side_are_two_pieces():
    index, back = interleaved(12, [[0, 0, 2, 2], [2, 2, 0, 2]])
    assert trajectories_in(index) == [(0, 2, 4), (1, 3, 5, 7), (6,)]
    assert (len(index), index.steps, index.pieces, index.one_row_pieces) == (3, 8, 3, 1)
    index.check(back)


def test_a_run_that_goes_on_behind_the_seam_is_one_piece():
    index, _ = interleaved(5, [[0, 1, 1], [1, 1, 1, 1]])
    assert trajectories_in(index) == [(2, 3, 4, 5, 6)]
    assert index.pieces == 1


def test_what_was_overwritten_is_a_start_no_more_and_its_follower_is_one():
    index, _ = interleaved(4, [[0, 0, 2, 0], [4, 3]])
    assert trajectories_in(index) == [(2, 5), (3,), (4,)]


def test_a_row_that_is_not_real_is_in_no_trajectory():
    index, back = interleaved(9, [[0, 1, -1, -1, 0, 1]])
    assert trajectories_in(index) == [(0, 1), (4, 5)]
    assert index.steps == 4
    assert index.locate(array(2, 4))[0][0] == -1
    index.check(back)


def test_rows_must_come_in_order_and_fit():
    index = TrajectoryIndex(5)
    with pytest.raises(ValueError, match="at most 5 rows from number 0 on, got 2 from 3 on"):
        index.append(3, array(0, 1))
    with pytest.raises(ValueError, match="got 6 from 0 on"):
        index.append(0, np.ones(6, dtype=np.int32))
    assert (index.indexed(), len(index)) == (0, 0)


def test_an_emptied_ring_goes_on_at_a_later_number():
    index, _ = interleaved(5, [[0, 1, 1]])
    index.drop_before(10)
    assert (index.low(), index.indexed(), len(index), index.steps) == (10, 10, 0, 0)
    index.append(10, array(7, 1))
    assert trajectories_in(index) == [(10, 11)]


@given(st.integers(1, 30), st.integers(0, 70), st.integers(1, 6))
def test_catching_up_takes_in_what_stands(capacity, written, stride):
    """From nothing, and from some rows before, also where the ring closed in between."""
    ring = np.zeros(capacity, dtype=np.int32)
    late, often = TrajectoryIndex(capacity), TrajectoryIndex(capacity)
    for number in range(written):
        ring[number % capacity] = stride if number % 11 >= stride else 0
        if number % 3 == 0:
            low = max(number + 1 - capacity, 0)
            often.catch_up(ring, Window((low,), (number + 1 - low,)))
    low = max(written - capacity, 0)
    for index in (late, often):
        index.catch_up(ring, Window((low,), (written - low,)))
        index.check(ring)
    assert trajectories_in(late) == trajectories_in(often)


def test_an_index_whose_change_was_cut_off_is_made_anew():
    index, back = interleaved(5, [[0, 1, 0]])
    index.tables.words[0, BROKEN] = 1  # as a writer leaves it that is killed in the middle
    index.tables.pieces[:] = 77
    index.catch_up(back, Window((0,), (3,)))
    assert trajectories_in(index) == [(0, 1), (2,)]


def test_an_index_ahead_of_its_ring_is_made_anew():
    """A writer that was killed had taken rows in that it never published."""
    index, back = interleaved(5, [[0, 1, 0, 1]])
    index.catch_up(back, Window((0,), (2,)))
    assert trajectories_in(index) == [(0, 1)]


def test_lanes_do_not_meet():
    index, back = TrajectoryIndex(4, lanes=3), np.zeros(12, dtype=np.int32)
    for lane, rows in enumerate(([0, 1, 1], [], [0, 0, 2, 2, 2])):
        for place, distance in enumerate(rows):
            index.append(lane * LANE + place, array(distance))
            back[4 * lane + place % 4] = distance
    high = 2 * LANE
    assert trajectories_in(index) == [(0, 1, 2), (high + 1, high + 3), (high + 2, high + 4)]
    assert index.steps == 7
    slots, offsets = index.locate(array(2, LANE, high + 4, 3 * LANE, -1))
    assert offsets.tolist() == [2, -1, 1, -1, -1]
    assert index.lengths_of(slots[[0, 2]]).tolist() == [3, 2]
    index.check(back)
    drawn = index.draw(3000, generator=torch.Generator().manual_seed(1))
    assert sorted(np.unique(drawn)) == sorted(index.slots())
    assert (np.unique(drawn, return_counts=True)[1] > 800).all()


def long_trajectories():
    """30 trajectories of 1 to 30 rows, written in turns."""
    back, index = [], TrajectoryIndex(500)
    open_ends = {}
    for step in range(30):
        for producer in range(30):
            if step <= producer:
                number = len(back)
                back.append(number - open_ends[producer] if producer in open_ends else 0)
                open_ends[producer] = number
    index.append(0, np.array(back))
    return index


@pytest.mark.parametrize(("minimum", "eligible"), [(1, 30), (13, 18), (30, 1)])
def test_trajectories_are_drawn_uniformly_among_those_long_enough(minimum, eligible):
    index, draws = long_trajectories(), 9000
    drawn = index.draw(draws, minimum, torch.Generator().manual_seed(5))
    found, counts = np.unique(drawn, return_counts=True)
    assert len(found) == eligible
    assert (index.lengths_of(found) >= minimum).all()
    expected = draws / eligible
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # mean `eligible - 1`, standard deviation sqrt of twice that: beyond 5 of them is no chance
    assert chi_square <= (eligible - 1) + 5 * (2 * (eligible - 1)) ** 0.5


def test_no_trajectory_long_enough_is_an_error_that_names_the_longest():
    with pytest.raises(ValueError, match="no trajectory has 31 rows: the longest of 30 has 30"):
        long_trajectories().draw(4, minimum=31)
    with pytest.raises(ValueError, match="there is no trajectory yet"):
        TrajectoryIndex(5).draw(1)


def test_any_row_of_a_trajectory_of_many_pieces_is_a_few_jumps_away():
    """One of two environments that take turns of 4 rows: every piece is as short as they are."""
    pieces = 1000
    back = np.ones(8 * pieces, dtype=np.int32)
    back[::4] = 5
    back[:8:4] = 0
    index, _ = interleaved(8 * pieces, [back])
    assert index.pieces == 2 * pieces
    takes = 0

    class Counting(np.ndarray):
        def take(self, *args, **kwargs):
            nonlocal takes
            takes += 1
            return np.asarray(super().take(*args, **kwargs))

    index.tables = TrajectoryTables(
        **index.tables.__dict__ | {"pieces": index.tables.pieces.view(Counting)}
    )
    offsets = np.arange(0, 4 * pieces - 8, 7)
    found = index.rows(np.zeros_like(offsets), offsets, np.full_like(offsets, 8))
    wanted = (offsets[:, None] + np.arange(8)) % 4 + (offsets[:, None] + np.arange(8)) // 4 * 8
    assert found.tolist() == wanted.reshape(-1).tolist()
    assert takes < 30  # two for each doubling, and the walk back over a slice


@pytest.mark.parametrize("few_runs", [-1000, 1000], ids=["by batch", "run by run"])
@pytest.mark.parametrize("seed", range(6))
def test_long_lives_in_small_rings_say_what_the_rows_say(few_runs, seed):
    """Producers that take turns of a few rows, some of whose trajectories never end: slots of
    pieces are used again by trajectories of quite other lengths."""
    random = np.random.default_rng(seed)
    capacity = int(random.integers(20, 70))
    index, stored = TrajectoryIndex(capacity), np.zeros(capacity, dtype=np.int32)
    index.writers[0].few_runs = few_runs
    newest, lives = {}, [1.0, 0.98, 0.9, 0.3, 0.0]
    for _ in range(150):
        first, back = index.indexed(), []
        turns = random.integers(0, 5, 9).repeat(random.integers(1, 4, 9))[: capacity - 1]
        for number, producer in enumerate(turns.tolist(), first):
            goes_on = producer in newest and random.random() < lives[producer]
            back.append(number - newest[producer] if goes_on else 0)
            newest[producer] = number
        index.append(first, np.array(back))
        stored[np.arange(first, first + len(back)) % capacity] = back
        index.check(stored)


@pytest.mark.parametrize("few_runs", [-1000, 1000], ids=["by batch", "run by run"])
def test_jumps_stay_short_and_right_while_the_oldest_pieces_go(few_runs):
    """A trajectory that never ends, in a ring that it went around many times."""
    index = TrajectoryIndex(2000)
    index.writers[0].few_runs = few_runs
    for _ in range(60):
        index.append(index.indexed(), np.tile(array(5, 1, 1, 1, 0, 1, 1, 1), 50))
    slot = index.draw(1, 500)[0]
    table, (first, stop, newest, *_) = index.tables.pieces, index.tables.trajectories[slot]
    worst = 0
    for step in range(first, stop, 13):
        piece, hops = table[newest], 0
        while piece[START] > step:
            onward = piece[JUMP] if piece[JUMP_START] >= step else piece[PREVIOUS]
            piece, hops = table[onward], hops + 1
        worst = max(worst, hops)
    assert 4 < worst < 40
    offsets = np.arange(stop - first)
    numbers = index.rows(np.full_like(offsets, slot), offsets, np.ones_like(offsets))
    steps = offsets + first
    assert numbers.tolist() == (steps // 4 * 8 + steps % 4).tolist()


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_queries_of_torn_tables_end_and_stay_inside(seed):
    """As a reader in another process may see them: any word may be any that it was or will be."""
    random = np.random.default_rng(seed)
    index, _ = interleaved(64, [[0, 0, 0, *[3] * 61], np.tile([0, 1, 4, 2], 8)])
    tables = index.tables
    for name, high in (("piece_of", 64), ("live", 64), ("pieces", 200), ("trajectories", 64)):
        table = getattr(tables, name)
        torn = random.random(table.shape) < random.choice([0.05, 0.5])
        table[torn] = random.integers(-1 if name == "piece_of" else 0, high, table.shape)[torn]
    slots = index.draw(8)
    found = index.rows(slots, random.integers(0, 9, 8), random.integers(1, 9, 8))
    assert len(found) <= 64
    numbers = np.arange(-5, 120)
    index.locate(numbers)
    index.after(numbers, 3)
    index.before(numbers, 3)


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_restored_index_is_the_same_in_everything_that_follows(seed, lanes):
    random = np.random.default_rng(seed)

    def write(index, back):
        for lane in range(lanes):
            rows = random.integers(0, 20)
            distances = np.where(np.arange(rows) % 5 < 2, 0, 2)
            for number, distance in enumerate(distances.tolist(), index.indexed(lane)):
                index.append(number, array(distance))
                back[lane * 20 + (number - lane * LANE) % 20] = distance

    index, back = TrajectoryIndex(20, lanes=lanes), np.zeros(20 * lanes, dtype=np.int32)
    for _ in range(random.integers(1, 4)):
        write(index, back)
    state = index.state()
    assert sum(map(len, state.values())) <= lanes + 5 * index.steps + 6 * 20 * lanes
    other, copy = TrajectoryIndex(20, lanes=lanes), back.copy()
    other.restore(state)
    other.check(copy)
    later = random.bit_generator.state
    write(index, back)
    random.bit_generator.state = later
    write(other, copy)
    other.check(copy)
    assert other.slots().tolist() == index.slots().tolist()
    if len(index):
        draws = [i.draw(5, generator=torch.Generator().manual_seed(1)) for i in (index, other)]
        assert draws[0].tolist() == draws[1].tolist()


def test_a_state_that_does_not_fit_is_refused():
    index, _ = interleaved(5, [[0, 1, 0]])
    with pytest.raises(ValueError, match="restore it into as many lanes"):
        TrajectoryIndex(5, lanes=2).restore(index.state())
    with pytest.raises(ValueError, match=r"pieces: expected shape \(2, 9\), got \(1, 9\)"):
        TrajectoryIndex(5).restore(index.state() | {"pieces": index.state()["pieces"][:1]})
    with pytest.raises(ValueError, match="do not fit 2 rows"):
        TrajectoryIndex(2).restore(index.state())


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("torn", [0.0, 0.2])
def test_numba_and_numpy_walk_to_the_same_rows(monkeypatch, lanes, torn):
    pytest.importorskip("numba")
    rng, capacity = np.random.default_rng(7), 60
    index = TrajectoryIndex(capacity, lanes=lanes)
    for lane in range(lanes):
        for _ in range(3):
            first = index.indexed(lane) if lane == 0 else max(index.indexed(lane), lane * LANE)
            back = rng.choice([0, 1, 1, 1, -1], 35).astype(np.int32)
            back[0] = 0
            back[1:][back[:-1] < 0] = 0
            index.append(first, back)
    for table in (index.tables.pieces, index.tables.trajectories, index.tables.piece_of):
        wrong = rng.random(table.shape) < torn
        table[wrong] = rng.integers(-3, 200, table.shape)[wrong]
    numbers = rng.integers(-5, 120, 400) + LANE * rng.integers(-1, lanes + 1, 400)
    for far in (0, 1, -2, 5):
        found = [*index.locate(numbers), *index.after(numbers, far)]
        with monkeypatch.context() as patch:
            patch.setattr("rl_replay.trajectories.index.load_compiled", lambda _: None)
            slow = [*index.locate(numbers), *index.after(numbers, far)]
        for one, other in zip(found, slow, strict=True):
            assert (one == other).all()
