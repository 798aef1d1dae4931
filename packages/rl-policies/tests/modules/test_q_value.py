import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl_layout import set_recurrent_mode
from rl_policies import QValueActor, QValueModule
from rl_policies.modules.q_value import GreedyChoice
from rl_specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot

VALUES = torch.tensor([[1.0, 3.0, 2.0, 0.0], [5.0, 4.0, 6.0, -1.0]])


def rows():
    return TensorDict({"observation": VALUES.clone()}, [2])


def test_categorical_actions_have_the_shape_of_the_batch():
    batch = QValueActor(nn.Identity(), spec=Categorical(4))(rows())
    assert batch["action"].tolist() == [1, 2]
    assert batch["chosen_action_value"].tolist() == [[3.0], [6.0]]
    assert torch.equal(batch["action_value"], VALUES)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_one_hot_actions_have_the_dtype_of_the_spec(dtype):
    spec = OneHot(4, dtype=dtype)
    action = QValueActor(nn.Identity(), spec=Composite(action=spec))(rows())["action"]
    assert spec.is_in(action)
    assert action.int().argmax(-1).tolist() == [1, 2]


def test_mask_restricts_the_choice_and_changes_no_value():
    actor = QValueActor(nn.Identity(), action_space="categorical", action_mask_key="mask")
    mask = torch.tensor([[True, False, True, True], [False, False, False, True]])
    batch = actor(rows().set("mask", mask))
    assert batch["action"].tolist() == [2, 3]
    assert batch["chosen_action_value"].tolist() == [[2.0], [-1.0]]
    assert torch.equal(batch["action_value"], VALUES)


def test_module_and_step_agree():
    actor = QValueActor(nn.Linear(4, 4), spec=OneHot(4))
    batch = actor(rows())
    outputs = dict(zip(actor.out_keys, actor.step(VALUES), strict=True))
    assert set(outputs) == {"action", "action_value", "chosen_action_value"}
    for key, value in outputs.items():
        assert_close(value, batch[key])


def test_gradient_reaches_the_chosen_value_only():
    values = VALUES.clone().requires_grad_()
    _, chosen = GreedyChoice("categorical")(values)
    chosen.sum().backward()
    assert values.grad.nonzero().tolist() == [[0, 1], [1, 2]]


def test_q_value_actor_takes_a_tensordict_module_and_other_keys():
    net = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=[("agent", "q")])
    actor = QValueActor(
        net,
        spec=Categorical(4),
        action_value_key=("agent", "q"),
        action_key=("agent", "action"),
        chosen_action_value_key="best",
    )
    batch = actor(rows())
    assert batch["agent", "action"].tolist() == [1, 2]
    assert batch["best"].shape == (2, 1)
    assert actor.action_space == "categorical"
    assert actor.spec == Categorical(4)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, ValueError, "Pass spec"),
        ({"action_space": "binary"}, ValueError, "got 'binary'"),
        ({"action_space": "one-hot", "spec": Categorical(4)}, ValueError, "contradicts"),
        ({"spec": Bounded(0, 1, shape=(4,))}, TypeError, "one of OneHot, .*: got Bounded"),
        ({"spec": Composite(move=OneHot(4))}, KeyError, "no 'action'"),
    ],
)
def test_wrong_action_spaces_and_specs_raise(kwargs, error, message):
    with pytest.raises(error, match=message):
        QValueActor(nn.Identity(), **kwargs)


def test_network_of_another_size_raises():
    actor = QValueActor(nn.Linear(4, 3), spec=Categorical(4))
    with pytest.raises(ValueError, match="'action' has 4 choices by its spec: got scores for 3"):
        actor(rows())


def test_module_that_writes_no_values_raises():
    net = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["logits"])
    with pytest.raises(ValueError, match=r"must write 'action_value': it writes .*logits"):
        QValueActor(net, spec=Categorical(4))


def test_mask_of_numbers_raises():
    with pytest.raises(TypeError, match="float32"):
        GreedyChoice("one_hot")(VALUES, VALUES)


def test_wrong_number_of_out_keys_raises():
    with pytest.raises(ValueError, match=r"got .*'action'"):
        QValueModule("one_hot", out_keys=["action"])


def test_multi_discrete_action_is_the_best_of_each_group():
    numbers = QValueActor(nn.Identity(), spec=MultiCategorical([3, 1]))(rows())
    assert numbers["action"].tolist() == [[1, 0], [2, 0]]
    assert numbers["chosen_action_value"].tolist() == [[3.0], [5.0]]
    spec = MultiOneHot([1, 3])
    vectors = QValueActor(nn.Identity(), spec=spec)(rows())
    assert vectors["action"].int().tolist() == [[1, 1, 0, 0], [1, 0, 1, 0]]
    assert vectors["chosen_action_value"].tolist() == [[4.0], [11.0]]
    assert spec.is_in(vectors["action"])


def test_masked_groups_take_their_best_allowed_choice():
    actor = QValueActor(nn.Identity(), spec=MultiCategorical([2, 2]), action_mask_key="mask")
    mask = torch.tensor([[True, False, True, True], [True, True, False, True]])
    batch = actor(rows().set("mask", mask))
    assert batch["action"].tolist() == [[0, 0], [0, 1]]
    assert batch["chosen_action_value"].tolist() == [[3.0], [4.0]]


def test_wrong_number_of_values_for_the_groups_raises():
    with pytest.raises(ValueError, match="5 choices by its spec: got scores for 4"):
        QValueActor(nn.Identity(), spec=MultiCategorical([3, 2]))(rows())
    ragged = MultiCategorical(torch.tensor([[2, 3], [3, 2]]))
    with pytest.raises(ValueError, match="other numbers of choices each"):
        QValueActor(nn.Identity(), spec=ragged)
    with pytest.raises(ValueError, match="Pass spec"):
        QValueActor(nn.Identity(), action_space="multi_one_hot")


@pytest.mark.parametrize(
    ("spec", "action", "worth"),
    [
        (OneHot(4, mask=[False, False, False, True]), [[0, 0, 0, 1]] * 2, [0, -1]),
        (Categorical(4, mask=[True, False, False, False]), [0, 0], [1, 5]),
        (MultiCategorical([2, 2], mask=[True, False, False, True]), [[0, 1]] * 2, [1, 4]),
        (MultiOneHot([2, 2], mask=[True, False, False, True]), [[1, 0, 0, 1]] * 2, [1, 4]),
    ],
)
def test_safe_takes_choices_of_the_mask_of_the_spec(spec, action, worth):
    mask = getattr(spec, "mask", None)
    assert mask is not None
    batch = QValueActor(nn.Identity(), spec=spec, safe=True)(rows())
    assert batch["action"].int().tolist() == action
    assert batch["chosen_action_value"].flatten().tolist() == worth
    free = QValueActor(nn.Identity(), spec=spec)(rows())
    assert free["action"].int().tolist() != action


def test_safe_needs_a_spec():
    with pytest.raises(ValueError, match="pass spec"):
        QValueActor(nn.Identity(), action_space="one_hot", safe=True)


@pytest.mark.parametrize(("space", "groups"), [("one_hot", None), ("multi_categorical", (2, 2))])
def test_row_without_an_allowed_choice_raises(space, groups):
    mask = torch.tensor([[True, True, False, True], [False] * 4])
    with pytest.raises(ValueError, match="must allow a choice in every row: 1 of 2 are empty"):
        GreedyChoice(space, groups=groups)(VALUES, mask)


@pytest.mark.parametrize(
    ("space", "groups"), [("categorical", None), ("multi_categorical", (2, 2))]
)
def test_row_without_an_allowed_choice_has_no_value_in_a_loss(space, groups):
    mask = torch.tensor([[True, True, False, True], [False] * 4])
    with set_recurrent_mode(True):
        _, worth = GreedyChoice(space, groups=groups)(VALUES, mask)
    assert worth.isnan().flatten().tolist() == [False, True]


@pytest.mark.parametrize("shape", [(4, 3), (7, 4), (7, 2, 4), (2, 1), (), (5,)])
def test_mask_of_another_shape_is_named(shape):
    actor = QValueActor(nn.Identity(), action_space="categorical", action_mask_key="mask")
    assert actor.action_mask_key == "mask"
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"the mask must .* \(2, 4\).*: got"):
        actor.step(VALUES, mask)


def test_allowed_action_is_chosen_even_if_its_value_is_minus_infinity():
    values = torch.tensor([[3.0, -torch.inf, 9.0, -torch.inf]])
    mask = torch.tensor([[False, True, False, True]])
    assert GreedyChoice("categorical")(values, mask)[0].tolist() == [1]
    made = GreedyChoice("multi_categorical", groups=(2, 2))(values, mask)
    assert made[0].tolist() == [[1, 1]]


def test_action_value_key_none_is_the_default_key():
    actor = QValueActor(nn.Identity(), spec=Categorical(4), action_value_key=None)
    assert "action_value" in actor.out_keys
    assert QValueModule("categorical", None).in_keys == ["action_value"]


@pytest.mark.parametrize("kind", [Categorical, OneHot])
def test_safe_takes_the_best_allowed_choice(kind):
    values = torch.tensor([[3.0, 1.0, 9.0, 2.0]])
    spec = kind(4, mask=torch.tensor([True, True, False, True]))
    action, _, chosen = QValueModule(spec=spec, safe=True).step(values)
    assert spec.to_categorical(action).tolist() == [0]
    assert chosen.tolist() == [[3.0]]


def test_safe_applies_both_masks():
    spec = Categorical(4, mask=torch.tensor([True, True, False, True]))
    actor = QValueModule(spec=spec, safe=True, action_mask_key="mask")
    values, mask = torch.tensor([[3.0, 1.0, 9.0, 2.0]]), torch.tensor([[False, True, True, True]])
    assert actor.step(values, mask)[0].tolist() == [3]
    with pytest.raises(ValueError, match="must allow a choice in every row"):
        actor.step(values, torch.tensor([[False, False, True, False]]))


def test_safe_applies_the_mask_of_each_environment():
    mask = torch.tensor([[True, False], [False, True]])
    actor = QValueModule(spec=Categorical(2, (2,), mask=mask), safe=True)
    assert actor.step(torch.zeros(5, 2, 2))[0].tolist() == [[0, 1]] * 5
    assert actor.step(torch.zeros(2, 3, 2))[0].tolist() == [[0] * 3, [1] * 3]


def test_ties_go_to_the_first_choice():
    module = QValueModule("categorical")
    assert module.step(torch.tensor([[1.0, 4.0, 4.0, 4.0]]))[0].tolist() == [1]


def test_nan_values_are_no_choice():
    values = torch.tensor([[0.0, torch.nan], [1.0, 2.0]])
    for space in ("one_hot", "categorical"):
        module = QValueModule(space)
        with pytest.raises(ValueError, match="NaN in 1 of 2 rows"):
            module.step(values)
        with pytest.raises(ValueError, match="NaN in 1 of 1 rows"):
            module.step(values[:1])
    masked = QValueModule("categorical", action_mask_key="mask")
    assert masked.step(values, ~values.isnan())[0].tolist() == [0, 1]


def test_infinite_values_are_choices():
    values = torch.tensor([[0.0, torch.inf], [-torch.inf, -torch.inf]])
    assert QValueModule("categorical").step(values)[0].tolist() == [1, 0]


def test_nan_values_of_a_batch_to_learn_from_pass():
    # padding, and next observations after a termination, may hold anything
    values = torch.tensor([[0.0, torch.nan]])
    with set_recurrent_mode(True):
        assert QValueModule("categorical").step(values)[2].isnan().all()
