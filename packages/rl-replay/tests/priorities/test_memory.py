from __future__ import annotations

import pickle

import numpy as np
import pytest

from rl_replay.priorities import numpy_tree
from rl_replay.priorities.memory import PriorityMemory

NUMBERS = np.uint32([2**32 - 3, 2**32 - 1, 1, 5])  # halves of row ids, about where they come round


def arrays_of(memory):
    tree = memory.tree
    return tree.words, tree.sums, tree.begins, memory.priorities


def test_numba_and_numpy_set_the_same_bits():
    numba_tree = pytest.importorskip("rl_replay.priorities.numba_tree")
    rng, count = np.random.default_rng(5), 5_000
    one, other = (PriorityMemory(count, alpha=0.6, eps=1e-8) for _ in range(2))
    for _ in range(12):
        begin, some = int(rng.integers(count - 60)), rng.integers(0, count, 50)
        run, ids = rng.choice(NUMBERS, 60), rng.choice(NUMBERS, 50)
        numbers = np.float32(rng.random((4, 60)) ** 5)
        found = []
        for module, memory in ((numba_tree, one), (numpy_tree, other)):
            arrays = arrays_of(memory)
            module.take_in(*arrays, memory.startable, begin, run, numbers[0], numbers[1])
            found.append(module.assign(*arrays, some, ids, numbers[2, :50], numbers[3, :50]))
            memory.startable[some] = True
        assert (found[0] == found[1]).all()
        assert (one.tree.words == other.tree.words).all()
        assert (one.tree.sums == other.tree.sums).all()
        assert (one.priorities == other.priorities).all()
        assert (one.startable == other.startable).all()


def test_words_of_younger_rows_stand_also_where_ids_come_round():
    memory = PriorityMemory(16, alpha=1.0, eps=0.0)
    memory.take_in(0, NUMBERS, np.float32([1, 2, 3, 4]))
    memory.take_in(0, NUMBERS[[1, 1, 0, 2]], np.float32([5, 6, 7, 8]))
    # the second one was there already, 3 and 4 are younger than what comes
    assert memory.priorities[:4].tolist() == [5, 2, 3, 4]
    assert memory.tree.ids[:4].tolist() == NUMBERS[[1, 1, 2, 3]].tolist()


def test_priorities_are_assigned_to_rows_whose_word_is_theirs():
    memory = PriorityMemory(40, alpha=1.0, eps=0.0)
    memory.take_in(20, np.uint32([21, 22, 23]), np.float32([1, 1, 1]))
    same = memory.assign(np.array([22, 21, 22]), np.uint32([23, 9, 23]), np.float32([4, 5, 6]))
    assert same.tolist() == [True, False, True]
    assert memory.tree.weights[20:23].tolist() == [1, 1, 6]  # of two the last one
    assert memory.tree.total == 8


def test_memory_of_one_process_begins_anew_in_another_one():
    memory = PriorityMemory(40, alpha=0.3, eps=0.1)
    memory.take_in(0, np.uint32([1]), np.float32([4]))
    other = pickle.loads(pickle.dumps(memory))
    assert (other.room, other.alpha, other.eps, other.tree.total) == (memory.room, 0.3, 0.1, 0)
