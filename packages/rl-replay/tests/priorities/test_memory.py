from __future__ import annotations

import pickle

import numpy as np
import pytest

from rl_replay.priorities import numpy_tree
from rl_replay.priorities.memory import PriorityMemory
from rl_slabs.internals import LANE_MASK, LANE_SHIFT


def arrays_of(memory):
    tree = memory.tree
    return tree.words, tree.sums, tree.begins, memory.priorities


@pytest.mark.parametrize("lanes", [1, 3])
def test_numba_and_numpy_set_and_draw_the_same_bits(lanes):
    numba_tree = pytest.importorskip("rl_replay.priorities.numba_tree")
    rng, count = np.random.default_rng(5), 5_001
    each = count // lanes
    one, other = (PriorityMemory(count, alpha=0.6, eps=1e-8) for _ in range(2))
    for turn in range(24):
        lane = int(rng.integers(lanes))
        row_id = (lane << LANE_SHIFT) + int(rng.choice([0, each, 2**32 - 30])) // each * each
        place = int(rng.integers(each - 60))
        row_id += place
        some = row_id + rng.integers(-2 * (turn % 3 == 0), 60, 50)
        standing = np.full((2, lanes), 70)
        standing[0] = (np.arange(lanes) << LANE_SHIFT) + (row_id & LANE_MASK)
        numbers = np.float32(rng.random((4, 60)) ** 5)
        fractions, startable = rng.random(40), [one.startable, other.startable]
        found = []
        for module, memory, flags in zip(
            (numba_tree, numpy_tree), (one, other), startable, strict=True
        ):
            arrays = arrays_of(memory)
            module.take_in(*arrays, flags, lane * each + place, row_id, numbers[0], numbers[1])
            used = flags if turn % 2 else None
            assigned = numbers[2, :50], numbers[3, :50]
            known = module.assign(*arrays, used, some, standing, each, *assigned)
            allowed = numbers[0, :50], turn % 5 > 0
            module.allow(*arrays[:3], flags, known[0], some, *allowed)
            drawn = module.draw_rows(*arrays[:3], fractions, turn % 2 > 0, standing, each)
            found.append((*known, *drawn))
        for mine, others in zip(*found, strict=True):
            np.testing.assert_array_equal(mine, others)
        assert (found[0][2] < 0) == (turn % 3 == 0 and some.min() < row_id)
        assert (one.tree.words == other.tree.words).all()
        assert (one.tree.sums == other.tree.sums).all()
        assert (one.priorities == other.priorities).all()
        assert (one.startable == other.startable).all()


def test_words_of_younger_rows_stand_also_where_ids_come_round():
    memory = PriorityMemory(16, alpha=1.0, eps=0.0)
    words, first = np.uint32([2**32 - 3, 2**32 - 1, 2, 5]), 2**32 - 3  # about where they come round
    memory.tree.put(0, words, np.float32([1, 2, 3, 4]))
    memory.priorities[:4] = [1, 2, 3, 4]
    memory.take_in(0, first, np.float32([5, 6, 7, 8]))  # words first + 1 to first + 4
    # the first one is older, the second one is there already, the others are younger
    assert memory.priorities[:4].tolist() == [5, 2, 3, 4]
    assert memory.tree.ids[:4].tolist() == [2**32 - 2, 2**32 - 1, 2, 5]


STANDING = np.array([[20], [3]])  # rows 20 to 22


def test_priorities_are_assigned_to_rows_whose_word_is_theirs():
    memory = PriorityMemory(40, alpha=1.0, eps=0.0)
    memory.take_in(20, 20, np.float32([1, 1, 1]))
    memory.tree.put(21, np.uint32([9]), np.float32([1]))
    found = memory.assign(np.array([22, 21, 22]), STANDING, 40, np.float32([4, 5, 6]))
    assert found.same.tolist() == [True, False, True]
    assert (found.positions.tolist(), found.known, found.highest) == ([22, 21, 22], 2, 6)
    assert memory.tree.weights[20:23].tolist() == [1, 1, 6]  # of two the last one
    assert memory.tree.total == 8


@pytest.mark.parametrize("row", [19, 23, -1, 60])
def test_nothing_is_assigned_where_a_row_does_not_stand(row):
    memory = PriorityMemory(40, alpha=1.0, eps=0.0)
    memory.take_in(20, 20, np.float32([1, 1, 1]))
    found = memory.assign(np.array([22, row]), STANDING, 40, np.float32([4, 5]))
    assert found.known == -1
    assert memory.tree.weights[20:23].tolist() == [1, 1, 1]


def test_memory_of_one_process_begins_anew_in_another_one():
    memory = PriorityMemory(40, alpha=0.3, eps=0.1)
    memory.take_in(0, 0, np.float32([4]))
    other = pickle.loads(pickle.dumps(memory))
    assert (other.room, other.alpha, other.eps, other.tree.total) == (memory.room, 0.3, 0.1, 0)
