import pytest
import torch

from rl_policies.modules.action_spec import ActionForm, form_of, groups_of, leaf_of, sized
from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
)

NESTED = Composite(agents=Composite(action=OneHot(3, shape=(2, 3)), shape=(2,)), stop=Binary(1))


def test_leaf_of_finds_nested_specs():
    assert leaf_of(NESTED, ("agents", "action")).shape == (2, 3)
    assert leaf_of(Binary(4), "anything").shape == (4,)
    assert leaf_of(None, "action") is None


def test_leaf_of_a_missing_key_lists_the_keys():
    with pytest.raises(KeyError, match=r"no 'action': it has .*stop"):
        leaf_of(NESTED, "action")


def test_leaf_of_another_type_raises():
    with pytest.raises(TypeError, match="got dict"):
        leaf_of({"action": Binary(1)}, "action")


@pytest.mark.parametrize(
    ("spec", "dims", "tail"),
    [
        (OneHot(3, shape=(2, 3)), 1, (3,)),
        (Categorical(5, shape=(2,)), 0, ()),
        (Bounded(-1, 1, shape=(4,)), 1, (4,)),
        (Bounded(-1, 1, shape=()), 0, ()),
    ],
)
def test_action_form_is_the_last_dimension_or_a_number(spec, dims, tail):
    form = ActionForm(spec, "action")
    assert (form.event_dims, form.tail) == (dims, tail)


def test_check_accepts_any_batch():
    form = form_of(Bounded(-1, 1, shape=(8, 2)), "action")
    for rows in ((), (5,), (3, 4)):
        form.check(torch.zeros(*rows, 2))


def test_check_names_key_dtype_and_shape():
    form = form_of(OneHot(3), ("agents", "action"))
    with pytest.raises(TypeError, match=r"\('agents', 'action'\) must be .*bool .*float32"):
        form.check(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"end in shape \(3,\) by its spec: got \(5, 4\)"):
        form.check(torch.zeros(5, 4, dtype=torch.bool))


def test_check_scores_counts_choices():
    with pytest.raises(ValueError, match="4 choices by its spec: got scores for 5"):
        ActionForm(Categorical(4), "action").check_scores(5)


def test_projection_uses_the_bounds_of_each_environment():
    high = torch.tensor([[1.0], [2.0], [3.0]])
    form = ActionForm(Bounded(torch.zeros(3, 1), high), "action")
    assert form.projected(torch.full((3, 1), 9.0)).flatten().tolist() == [1, 2, 3]
    assert form.projected(torch.full((5, 3, 1), 9.0))[4].flatten().tolist() == [1, 2, 3]
    by_time = form.projected(torch.full((3, 5, 1), 9.0))
    assert by_time.squeeze(-1).tolist() == [[1] * 5, [2] * 5, [3] * 5]
    with pytest.raises(
        ValueError, match=r"differs between environments \(3,\), and actions \(7, 1"
    ):
        form.projected(torch.full((7, 1), 9.0))


def test_equal_environments_fit_any_batch():
    form = ActionForm(Bounded(-1, 1, shape=(3, 2)), "action")
    assert form.projected(torch.full((7, 2), 9.0)).tolist() == [[1.0, 1.0]] * 7


def test_actions_are_cast_if_the_cast_is_exact():
    form = ActionForm(OneHot(3), "action")
    assert form.fitted(torch.tensor([0, 1, 0]), safe=False).tolist() == [False, True, False]
    with pytest.raises(TypeError, match="int64, with numbers"):
        form.fitted(torch.tensor([0, 2, 0]), safe=False)


def test_sized_replaces_dynamic_dimensions_by_those_of_the_action():
    assert sized(Categorical(3, (-1,)), torch.Size([5, 7])).shape == (7,)
    fixed = Categorical(3, (2,))
    assert sized(fixed, torch.Size([5, 2])) is fixed
    assert sized(Categorical(3, (-1, 2)), torch.Size([2])).shape == (-1, 2)


def test_groups_of_counts_the_choices_of_each_group():
    assert groups_of(MultiCategorical([2, 3]), "action") == (2, 3)
    assert groups_of(MultiOneHot([4, 2]), "action") == (4, 2)
    assert groups_of(Categorical(3), "action") is None


def test_bounds_of_one_action_are_those_of_its_entries():
    low, high = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, 4.0])
    found = ActionForm(Bounded(low, high), "action").bounds()
    assert (found["low"].tolist(), found["high"].tolist()) == ([-1, -2], [3, 4])
    ends = torch.tensor([[1.0, 2.0], [1.0, 3.0]])  # of two environments
    assert ActionForm(Bounded(-ends, ends), "action").bounds() == {}


def test_bounds_are_numbers_if_all_entries_agree():
    assert ActionForm(Bounded(-2, 2, shape=(3,)), "action").bounds() == {"low": -2.0, "high": 2.0}
    assert ActionForm(Bounded(-2, 2, shape=(5, 3)), "action").bounds() == {"low": -2.0, "high": 2.0}
