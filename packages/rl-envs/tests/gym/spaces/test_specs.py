import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import space_of_spec, spec_of_space
from rl_envs.gym.gym_env import reader_of_space
from rl_envs.gym.spaces.tree import assemble, check_keys, leaves_of_space, value_at
from rl_envs.gym.spaces.values import writer_of_space
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
    spaces.Tuple([spaces.Discrete(2), spaces.Dict(a=spaces.MultiBinary((2, 3)))]),
    spaces.Box(0, 1, (3,), bool),
    spaces.Box(-np.inf, np.inf, (3,), np.int16),
    spaces.Box(0, np.inf, (3,), np.float16),
    spaces.MultiDiscrete(np.array([[2, 3, 5], [7, 11, 13]])),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Dict(c=spaces.Box(0, 1, (2,)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_from_their_specs(space):
    assert space_of_spec(spec_of_space(space)) == space


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_members_become_members(space, one_hot):
    space.seed(3)
    for key, _, leaf in leaves_of_space(space, "action"):
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


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_data_without_a_fixed_shape_is_refused_by_name(space):
    name = type(space).__name__
    with pytest.raises(TypeError, match=rf"Dict or Tuple space: got {name}\. Wrap"):
        spec_of_space(space)
    inside = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), space]))
    with pytest.raises(TypeError, match=rf"got {name} at \('a', 1\)"):
        spec_of_space(inside)


def test_dtypes_that_torch_lacks_are_refused_by_name():
    with pytest.raises(TypeError, match=r"no dtype for a Box of (longdouble|float128) at 'far'"):
        spec_of_space(spaces.Dict(far=spaces.Box(0, 1, (2,), np.longdouble)))
    with pytest.raises(TypeError, match="uint64 above the largest int64: cast it"):
        spec_of_space(spaces.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64))


def test_space_of_spec_refuses_objects():
    with pytest.raises(TypeError, match="no Gymnasium space for NonTensor"):
        space_of_spec(NonTensor())


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_integers_are_held_by_signed_ones(name):
    space = spaces.Box(0, np.iinfo(np.uint16).max, (3,), np.dtype(name).type)
    spec = spec_of_space(space)
    assert spec.dtype == (torch.int32 if name == "uint16" else torch.int64)
    row, value = spec.zero().numpy(), np.array([0, 7, 65535], name)
    writer_of_space(space, ("o",))(row, value)
    assert row.tolist() == [0, 7, 65535]
    back = reader_of_space(space, one_hot=False)(row)
    assert space.contains(back)
    assert back.tolist() == value.tolist()


def test_names_that_are_no_strings_are_refused():
    with pytest.raises(TypeError, match="must be strings, to be keys: got 3"):
        spec_of_space(spaces.Dict({3: spaces.Discrete(2)}))


@pytest.mark.parametrize("name", ["reward", "terminated", "next", "_reset", "push"])
def test_names_that_mean_something_else_are_refused(name):
    seen = leaves_of_space(spaces.Dict({name: spaces.Discrete(2)}), "observation")
    acted = leaves_of_space(spaces.Dict(push=spaces.Tuple([spaces.Discrete(3)])), "action")
    with pytest.raises(ValueError, match=rf"have entries \['{name}'\], which mean something else"):
        check_keys(seen, acted)


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
    assert [leaf.key for leaf in leaves_of_space(SPACES[-1], "observation")] == [("a",), ("b", "c")]
    assert value_at({"b": {"c": 7}}, ("b", "c")) == 7


def test_leaves_of_tuples_are_numbered_and_put_together_again():
    space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Dict(b=spaces.Discrete(3))]))
    leaves = leaves_of_space(space, "observation")
    assert [leaf.key for leaf in leaves] == [("a", "0"), ("a", "1", "b")]
    value = {"a": (1, {"b": 2})}
    parts = [value_at(value, leaf.path) for leaf in leaves]
    assert parts == [1, 2]
    assert assemble(space, iter(parts)) == value
