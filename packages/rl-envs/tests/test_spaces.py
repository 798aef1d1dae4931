import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import space_of_spec, spec_of_space
from rl_envs.spaces import leaves_of_space, reader_of_space, value_at, writer_of_space
from rl_specs import Binary, Categorical, MultiCategorical, MultiOneHot, NonTensor, OneHot

SPACES = [
    spaces.Box(-1, 2, (3,), np.float32),
    spaces.Box(np.array([0, 1], "int64"), np.array([5, 7], "int64"), dtype=np.int64),
    spaces.Box(0, 255, (5, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(np.array([-np.inf, 0], "float32"), np.array([1, np.inf], "float32")),
    spaces.Discrete(5),
    spaces.MultiDiscrete([2, 5, 3]),
    spaces.MultiBinary(5),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Dict(c=spaces.Box(0, 1, (2,)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_from_their_specs(space):
    assert space_of_spec(spec_of_space(space)) == space


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_members_become_members(space, one_hot):
    space.seed(3)
    for key, leaf in leaves_of_space(space, "action"):
        spec = spec_of_space(leaf, one_hot=one_hot)
        row = np.empty(tuple(spec.shape), torch.empty(0, dtype=spec.dtype).numpy().dtype)
        read = reader_of_space(leaf, one_hot=one_hot)
        row[...] = spec.rand().numpy()
        assert leaf.contains(read(row)), key


def test_choices_are_one_hot_on_request():
    assert isinstance(spec_of_space(spaces.Discrete(3)), Categorical)
    assert isinstance(spec_of_space(spaces.Discrete(3), one_hot=True), OneHot)
    assert isinstance(spec_of_space(spaces.MultiDiscrete([2, 3])), MultiCategorical)
    assert isinstance(spec_of_space(spaces.MultiDiscrete([2, 3]), one_hot=True), MultiOneHot)
    assert isinstance(spec_of_space(spaces.MultiBinary(3)), Binary)


def test_one_hot_specs_become_spaces_of_choices():
    assert space_of_spec(OneHot(3)) == spaces.Discrete(3)
    assert space_of_spec(MultiOneHot([2, 3])) == spaces.MultiDiscrete([2, 3])
    assert space_of_spec(Categorical(3, (5,))) == spaces.MultiDiscrete([3] * 5)


def test_data_without_a_fixed_shape_is_refused():
    with pytest.raises(TypeError, match="Dict space: got Text"):
        spec_of_space(spaces.Text(5))
    with pytest.raises(TypeError, match="no Gymnasium space for NonTensor"):
        space_of_spec(NonTensor())


def test_numbers_count_from_zero():
    row = np.zeros((), "int64")
    space = spaces.Discrete(3, start=5)
    writer_of_space(space, ("o",))(row, np.int64(6))
    assert row == 1
    assert reader_of_space(space, one_hot=False)(row) == 6
    several = spaces.MultiDiscrete([2, 3], start=[4, 7])
    hot = np.array([False, True, False, False, True])
    assert reader_of_space(several, one_hot=True)(hot).tolist() == [5, 9]


def test_a_value_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"'observation': expected shape \(3,\), got \(\)"):
        writer_of_space(SPACES[0], ("observation",))(np.zeros(3, "float32"), 1.0)


def test_environments_get_copies_of_actions():
    row = np.zeros(3, "float32")
    assert reader_of_space(SPACES[0], one_hot=True)(row) is not row


def test_leaves_are_found_by_their_keys():
    assert [key for key, _ in leaves_of_space(SPACES[-1], "observation")] == [("a",), ("b", "c")]
    assert value_at({"b": {"c": 7}}, ("b", "c")) == 7
