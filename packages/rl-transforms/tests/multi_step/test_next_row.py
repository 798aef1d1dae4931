"""Rows that come one a call: a short path, held to the general one."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_transforms import MultiStepTransform

IDS, NAN = (keys.TRAJ_IDS, keys.TRAJ_STEP), float("nan")
ODD_PAIRS = [(NAN, NAN), (NAN, 0.0), (-0.0, 0.0), (-0.0, -0.0)]
"""A next observation and the observation of the row after it: equal where their bits are."""


def generally(rows):
    """The same rows, which the short path leaves to the general one because they have a mask."""
    return rows.clone().set(keys.MASK, torch.ones(rows.batch_size, dtype=torch.bool))


def bits_of(rows):
    """Shapes, dtypes and bytes of all leaves; None for no rows."""
    if rows is None:
        return None
    return rows.batch_size, {
        key: (leaf.shape, leaf.dtype, leaf.contiguous().numpy().tobytes())
        for key, leaf in rows.items(True, True)
    }


def passed_on(ahead, pieces):
    """What each call returns, what is held after it, and the warnings."""
    found = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for piece in pieces:
            found.append((bits_of(ahead.inv(piece)), bits_of(ahead.held)))
            piece.zero_()  # a loop may use its memory again
        state = ahead.get_extra_state()
        found.append((bits_of(ahead.flush()), state["waited"], state["numbers"]))
    return found, [str(warning.message) for warning in said]


@st.composite
def deliveries(draw):
    """Rows of trajectories, mostly one a call, with ids, with one of their keys, or without."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    kinds = draw(st.lists(st.sampled_from(list(EndKind)), min_size=4, max_size=4))
    rows = trajectories(lengths, kinds[: len(lengths)])
    count = len(rows)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    rows["next", "reward"] = torch.randn(count, *shape, generator=generator, dtype=dtype)
    for key in (keys.IS_INIT, keys.NEXT_TRUNCATED, keys.NEXT_MISSING):  # odd markers
        flags = torch.zeros_like(rows["is_init"]) if key == keys.NEXT_MISSING else rows[key]
        flags[draw(st.lists(st.integers(0, count - 1), max_size=1))] = True
        rows[key] = flags[:, 0] if key == keys.NEXT_MISSING else flags
    for after, before in draw(st.lists(st.sampled_from(ODD_PAIRS), max_size=2)):
        at = draw(st.integers(0, count - 1))
        rows["next", "observation"][at], rows["observation"][(at + 1) % count] = after, before
    stays = [i not in draw(st.sets(st.integers(0, count - 1), max_size=2)) for i in range(count)]
    gone = draw(st.sampled_from([(), ("collector",), IDS, IDS[:1], IDS[1:]]))
    rows = rows[torch.tensor(stays)].exclude(*gone)
    pieces = []
    while len(rows):
        size = draw(st.sampled_from([1, 1, 1, 1, 2, 4]))
        pieces.append(rows[:size].clone())
        rows = rows[size:]
    return pieces


@given(deliveries(), st.integers(1, 6), st.sampled_from([1.0, 0.99, 0.37]), st.integers(1, 3))
def test_rows_one_by_one_equal_those_of_the_general_path_bit_for_bit(
    pieces, n_steps, gamma, patience
):
    short, general = (
        MultiStepTransform(n_steps, gamma, patience=patience, producer=7) for _ in range(2)
    )
    expected = passed_on(general, [generally(piece) for piece in pieces])
    assert passed_on(short, pieces) == expected


class Operations(TorchDispatchMode):
    """The names of the tensor operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("gone", [(), ("collector", "is_init")])
def test_ordinary_loop_takes_the_short_path(gone):
    rows, ahead = trajectories([9]).exclude(*gone), MultiStepTransform(3, 0.9)
    for row in rows[:4].split(1):
        ahead.inv(row)
    with Operations() as ran:
        made = ahead.inv(rows[4:5])
    assert made["next", "reward"].item() == pytest.approx(3 + 0.9 * 4 + 0.81 * 5)
    assert "index_select" not in ran.names  # the general path gathers


def test_state_dict_between_single_rows_loses_nothing():
    rows = trajectories([9]).exclude("collector")
    one, other = MultiStepTransform(4, 0.9), MultiStepTransform(4, 0.9)
    for row in rows[:3].split(1):
        one.inv(row)
    other.load_state_dict(one.state_dict())
    held = one.write_state()
    first = bits_of(one.inv(rows[3:4]))
    assert bits_of(other.inv(rows[3:4])) == first
    one.restore_write_state(held)
    assert bits_of(one.inv(rows[3:4])) == first


def test_row_unlike_the_single_one_held_is_refused():
    rows, ahead = trajectories([9]), MultiStepTransform(4, 0.9)
    ahead.inv(rows[:1])
    wide = rows[1:2].clone().set(keys.IS_INIT, torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="the rows differ from those held back"):
        ahead.inv(wide)


def test_group_that_ends_alone_is_refused_row_by_row():
    rows = trajectories([5], EndKind.CUT)
    rows["next", "agents"] = TensorDict({"done": torch.zeros(5, 2, 1, dtype=torch.bool)}, [5])
    rows["next", "agents", "done"][1, 1] = True
    ahead = MultiStepTransform(3, 0.9)
    ahead.inv(rows[:1])
    ahead.inv(rows[1:2])
    with pytest.raises(ValueError, match="ends where its trajectory continues"):
        ahead.inv(rows[2:3])


def test_single_rows_are_compared_with_ended_ones_of_the_call_before():
    pieces = []
    for k in range(4):
        last = float(100 + k)  # what the ended row, the first row after it and the next one show
        seen = torch.tensor([[50.0 + k], [10.0 + k], [last]])
        after = torch.tensor([[last], [last], [51.0 + k]])
        ended = torch.tensor([[True], [False], [False]])
        step = TensorDict({"observation": after, "reward": torch.ones(3, 1), "done": ended}, [3])
        pieces += TensorDict({"observation": seen, "next": step}, [3]).split([2, 1])
    expected = passed_on(MultiStepTransform(3, 0.9, producer=7), [generally(p) for p in pieces])
    assert len(expected[1]) == 1
    assert "4 of 4 rows that end a trajectory" in expected[1][0]
    assert passed_on(MultiStepTransform(3, 0.9, producer=7), pieces) == expected


def test_row_whose_next_observation_is_missing_is_not_continued_by_its_bits():
    rows = trajectories([5]).exclude(*IDS)
    rows[keys.NEXT_MISSING] = torch.tensor([False, True, False, False, False])
    for change in (TensorDict.clone, generally):
        ahead = MultiStepTransform(3, 0.9)
        made = [ahead.inv(change(row)) for row in rows.split(1)]
        assert [None if one is None else len(one) for one in made] == [None] * 4 + [3]
        assert len(ahead.flush()) == 2
