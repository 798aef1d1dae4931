import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_specs import (
    BoxList,
    Categorical,
    CategoricalBox,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Stacked,
)

MASK = torch.tensor([False, True, True, False, True])
ROWS = [[2, 3, 4], [5, 6, 7]]


def test_each_column_has_its_own_range():
    spec = MultiCategorical([2, 3])
    assert spec.is_in(torch.tensor([1, 2]))
    assert not any(spec.is_in(torch.tensor(value)) for value in ([2, 0], [0, 3], [-1, 0]))
    assert spec.rand((500,)).amax(0).tolist() == [1, 2]


def test_each_row_may_have_its_own_columns():
    spec = MultiCategorical(ROWS)
    assert spec.shape == (2, 3)
    assert spec.rand((500,)).amax(0).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert spec[1].cardinality() == 210
    with pytest.raises(ValueError, match="the rows of nvec differ"):
        spec.cardinality()


def test_project_clips_at_both_ends():
    found = MultiCategorical([2, 3], (2, 2)).project(torch.tensor([[-4, 9], [0.6, 1.0]]))
    assert found.tolist() == [[0, 2], [1, 1]]
    assert MultiCategorical(ROWS).project(torch.full((2, 3), 99)).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_masks_lie_side_by_side():
    spec = MultiCategorical([2, 3], (7, 2), mask=MASK)
    drawn = spec.rand((50,))
    assert drawn[..., 0].unique().tolist() == [1]
    assert drawn[..., 1].unique().tolist() == [0, 2]
    assert not spec.is_in(torch.zeros(7, 2, dtype=torch.int64))
    assert spec.project(torch.full((7, 2), -1))[0].tolist() == [1, 0]


def test_rows_that_differ_cannot_be_masked():
    with pytest.raises(ValueError, match="the rows of nvec differ"):
        MultiCategorical([[2, 3], [3, 2]], mask=MASK)


def test_a_single_column_may_be_sampled_as_a_scalar():
    spec = MultiCategorical(5)
    assert spec.shape == (1,)
    assert spec.rand().shape == ()
    assert spec.rand((7,)).shape == (7,)
    assert spec.is_in(torch.tensor(4))
    assert spec.is_in(torch.tensor([4]))
    assert not spec.is_in(torch.tensor(5))
    assert MultiCategorical(5, remove_singleton=False).rand().shape == (1,)


def test_shapes_and_numbers_are_checked():
    with pytest.raises(ValueError, match="the last size must be the number of columns, 2"):
        MultiCategorical([2, 3], (5, 3))
    with pytest.raises(ValueError, match="does not fit the shape"):
        MultiCategorical(ROWS, (5, 3))
    with pytest.raises(ValueError, match="must be positive"):
        MultiCategorical([2, 0])
    with pytest.raises(ValueError, match="the last size must be the number of entries, 5"):
        MultiOneHot([2, 3], (4,))
    with pytest.raises(NotImplementedError, match="its nvec is known"):
        MultiCategorical([2, 3]).set_provisional_n(3)


def test_enumerate_lists_all_combinations():
    spec = MultiCategorical([2, 3])
    expected = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert spec.enumerate().tolist() == expected
    assert MultiCategorical([2, 3], (7, 2)).enumerate().shape == (6, 7, 2)
    masked = MultiCategorical([2, 3], mask=MASK)
    assert masked.enumerate(use_mask=True).tolist() == [[1, 0], [1, 2]]
    assert torch.equal(spec.to_one_hot(spec.enumerate()), spec.to_one_hot_spec().enumerate())
    assert spec.cardinality() == spec.to_one_hot_spec().cardinality() == 6


def test_one_hot_and_back_keeps_the_mask():
    spec = MultiCategorical([2, 3], (7, 2), mask=MASK)
    hot = spec.to_one_hot_spec()
    assert hot == MultiOneHot([2, 3], (7, 5), mask=MASK)
    assert hot.to_categorical_spec() == spec
    sample = spec.rand()
    assert hot.is_in(spec.to_one_hot(sample))
    assert torch.equal(hot.to_categorical(spec.to_one_hot(sample)), sample)


def test_rows_that_differ_become_a_stack_of_one_hot_specs():
    spec = MultiCategorical([[2, 3], [4, 5]]).to_one_hot_spec()
    assert isinstance(spec, Stacked)
    assert [part.n for part in spec.unbind()] == [5, 9]


def test_index_reads_one_entry_of_each_part():
    values = torch.tensor([10, 11, 20, 21, 22])
    assert MultiCategorical([2, 3]).index(torch.tensor([1, 2]), values).tolist() == [11, 22]
    hot = MultiOneHot([2, 3])
    assert hot.index(hot.encode([1, 2]), values).tolist() == [11, 22]


def test_spaces_list_a_box_for_each_column():
    boxes = BoxList((CategoricalBox(2), CategoricalBox(3)))
    assert MultiCategorical([2, 3], (7, 2)).space == boxes == MultiOneHot([2, 3]).space
    assert len(MultiCategorical(ROWS).space) == 2
    assert MultiOneHot([2, 3]).nvec == (2, 3)


def test_one_hot_members_have_a_one_in_each_group():
    spec = MultiOneHot([2, 3])
    one, zero = True, False
    assert spec.is_in(torch.tensor([zero, one, one, zero, zero]))
    assert not spec.is_in(torch.tensor([one, one, zero, zero, zero]))
    assert not MultiOneHot([2, 3], mask=MASK).is_in(torch.tensor([one, zero, one, zero, zero]))


def test_one_hot_project_takes_the_largest_of_each_group():
    spec = MultiOneHot([2, 3], mask=MASK)
    found = spec.project(torch.tensor([9.0, 0.0, 1.0, 9.0, 2.0]))
    assert found.int().tolist() == [0, 1, 0, 0, 1]


def test_one_hot_encode_takes_a_position_for_each_group():
    spec = MultiOneHot([2, 3], (7, 5))
    positions = np.stack([np.arange(7) % 2, np.arange(7) % 3], -1)
    assert np.array_equal(spec.to_numpy(spec.encode(positions)), positions)
    with pytest.raises(ValueError, match=r"expected positions from 0 to \[1, 2\]"):
        spec.encode(positions + 1)
    with pytest.raises(ValueError, match="expected 2 positions in the last dimension"):
        spec.encode([0, 1, 2])


def test_bools_of_groups_are_vectors():
    spec = MultiOneHot([2, 3])
    assert spec.encode(np.array([1, 0, 0, 1, 0], dtype=bool)).int().tolist() == [1, 0, 0, 1, 0]
    with pytest.raises(ValueError, match="Positions are integers"):
        spec.encode(np.array([True, False]))


def test_each_group_has_a_register():
    spec = MultiOneHot([2, 3], use_register=True)
    assert spec.encode(["left", "up"]).int().tolist() == [1, 0, 1, 0, 0]
    assert spec.encode(["left", "down"]).int().tolist() == [1, 0, 0, 1, 0]
    assert spec.to_numpy(spec.encode(["left", "down"])).tolist() == ["left", "down"]


def test_families_are_related():
    assert isinstance(MultiOneHot([2, 3]), OneHot)
    assert isinstance(MultiCategorical([2, 3]), Categorical)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_choices_of_floats_are_whole_numbers(dtype):
    spec = MultiCategorical([7, 3], dtype=dtype)
    drawn = spec.rand((100,))
    assert spec.is_in(drawn)
    assert drawn.amax(0).tolist() == [6, 2]


def test_scalars_of_one_column_are_taken_as_the_column_is():
    spec = MultiCategorical(5, mask=torch.tensor([True, False, True, True, True]))
    assert spec.to_one_hot(torch.tensor(2)).tolist() == [False, False, True, False, False]
    assert torch.equal(spec.to_one_hot(torch.tensor([2])), spec.to_one_hot(torch.tensor(2)))
    assert spec.to_one_hot(spec.rand((7,))).shape == (7, 5)
    assert spec.project(torch.tensor(9)).shape == ()
    assert spec.project(torch.tensor([1])).tolist() == [0]
    assert spec.index(torch.tensor(2), torch.arange(5.0)).tolist() == [2.0]
    assert not spec.is_in(torch.tensor(1))


def test_one_column_has_its_shape_in_composites_and_stacks():
    one, other = MultiCategorical([5]), MultiCategorical([7])
    for spec in (torch.stack([one, other]), torch.stack([one, one])):
        drawn = spec.rand((3,))
        assert drawn.shape == (3, 2, 1)
        assert spec.is_in(drawn)
    held = Composite(action=MultiCategorical([5]))
    assert held.rand((3,))["action"].shape == (3, 1)
    assert held.is_in(held.rand())


@pytest.mark.parametrize("nvec", [[4, 3], [[4, 3], [2, 5]]], ids=["one row", "rows"])
def test_floats_are_drawn_as_whole_numbers(nvec):
    spec = MultiCategorical(nvec, dtype=torch.float32)
    drawn = spec.rand((500,))
    assert drawn.dtype == torch.float32
    assert spec.is_in(drawn)
    assert torch.equal(drawn, drawn.round())
    assert torch.equal(drawn.amax(0) + 1, torch.tensor(nvec, dtype=torch.float32))


@pytest.mark.parametrize(
    "spec", [MultiOneHot([2, 3]), OneHot(3), MultiCategorical([2, 3])], ids=str
)
def test_a_tensordict_is_no_value_of_a_leaf(spec):
    with pytest.raises(ValueError, match="expected numbers in rows of one length for "):
        spec.encode(TensorDict({"action": torch.ones(2, 5)}, [2]))
