import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_replay.lossless.observations import (
    equal_within,
    equal_within_on_device,
    most_below,
    same_bits_on_device,
    successors,
)


@st.composite
def chains(draw):
    """How far back each row of a batch continues, no two rows going on from one; and its steps."""
    count = draw(st.integers(0, 12))
    back, followed = [], set()
    for row in range(count):
        distance = draw(st.sampled_from([0, 1, 1, 1, 2, 3, 20]))
        if row - distance in followed:
            distance = 0
        if distance:
            followed.add(row - distance)
        back.append(distance)
    steps = [draw(st.integers(1, 4)) for _ in range(count)]
    return np.array(back, dtype=np.int64), np.array(steps, dtype=np.int64)


def by_hand(back, steps):
    following = {
        row - distance: row for row, distance in enumerate(back.tolist()) if 0 < distance <= row
    }
    found = []
    for row, count in enumerate(steps.tolist()):
        place = row
        for _ in range(count):
            place = following.get(place, -1)
        found.append(place)
    return found


@given(chains())
def test_the_row_so_many_steps_further_on_is_found(drawn):
    back, steps = drawn
    assert successors(back, steps).tolist() == by_hand(back, steps)
    assert successors(back).tolist() == by_hand(back, np.ones_like(steps))


def test_a_step_count_beyond_the_batch_leads_nowhere_and_costs_no_rounds():
    steps = np.array([1, 2**40, 2, 2**63 - 1, 1])
    assert successors(np.array([0, 1, 1, 1, 1]), steps).tolist() == [1, -1, 4, -1, -1]
    assert most_below(steps, 5) == 2
    assert most_below(np.array([2**40]), 5) == 1
    assert most_below(steps[:0], 5) == 1


def test_padding_follows_nothing():
    assert successors(np.array([0, -1, -1])).tolist() == [-1, -1, -1]


@given(chains(), st.integers(0, 1 << 20))
def test_equal_rows_are_those_with_equal_bytes(drawn, seed):
    back, steps = drawn
    target, count = successors(back, steps), len(back)
    generator = np.random.default_rng(seed)
    menu = np.array([0.0, -0.0, np.nan])
    roots = [menu[generator.integers(3, size=(count, 1))], generator.integers(2, size=(count, 2))]
    nexts = [menu[generator.integers(3, size=(count, 1))], generator.integers(2, size=(count, 2))]
    expected = [
        place >= 0
        and all(o[place].tobytes() == x[row].tobytes() for o, x in zip(roots, nexts, strict=True))
        for row, place in enumerate(target.tolist())
    ]
    assert equal_within(roots, nexts, target).tolist() == expected
    tensors = ([torch.from_numpy(leaf) for leaf in side] for side in (roots, nexts))
    assert equal_within_on_device(*tensors, target).tolist() == expected


def test_rows_are_compared_on_a_device_to_the_last_byte():
    for nbytes in (0, 1, 3, 8, 129):
        one = torch.zeros(5, nbytes, dtype=torch.uint8)
        two = one.clone()
        two[[1, 3], -1:] = 1
        assert same_bits_on_device(one, two).tolist() == [True, not nbytes, True, not nbytes, True]
