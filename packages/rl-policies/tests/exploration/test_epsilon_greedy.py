import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictSequential, set_interaction_type
from torch import nn
from torch.testing import assert_close

from rl_policies import EGreedyModule, QValueActor
from rl_specs import Bounded, Categorical, Composite, MultiCategorical, OneHot
from rl_tensordict import VerifiedCalls


def explore(spec, eps=1.0, **kwargs):
    return EGreedyModule(spec, eps_init=eps, eps_end=0.0, **kwargs)


def test_eps_falls_linearly_to_its_end():
    module = EGreedyModule(Categorical(3), eps_init=0.9, eps_end=0.1, annealing_num_steps=8)
    found = []
    for frames in (1, 2, 4, 100):
        module.step(frames)
        found.append(module.eps.item())
    assert_close(found, [0.8, 0.6, 0.2, 0.1])


def test_eps_is_saved():
    module, other = explore(Categorical(3)), explore(Categorical(3))
    module.step(250)
    other.load_state_dict(module.state_dict())
    assert other.eps == 0.75


def test_row_is_random_with_probability_eps():
    module = explore(OneHot(4), eps=0.25)
    action = torch.eye(4, dtype=torch.bool)[torch.zeros(40_000, dtype=torch.int64)]
    changed = (module.step(action)[0] != action).any(-1).double().mean()
    # a quarter of the rows, of which a quarter draws the same action; six standard errors
    assert abs(changed - 0.1875) < 0.0118


def test_random_choices_are_uniform():
    action = explore(Categorical(5)).step(torch.zeros(50_000, dtype=torch.int64))[0]
    assert (action.bincount(minlength=5) / 50_000 - 0.2).abs().max() < 0.0108


def test_epsilon_greedy_acts_under_random_only():
    module, action = explore(Categorical(9)), torch.full((40,), 3)
    for kind in (InteractionType.MODE, InteractionType.MEAN, InteractionType.DETERMINISTIC):
        with set_interaction_type(kind):
            assert module.step(action)[0] is action
    with set_interaction_type(InteractionType.RANDOM):
        assert (module.step(action)[0] != action).any()


def test_default_interaction_type_applies_when_none_is_set():
    action = torch.full((40,), 3)
    assert (explore(Categorical(9)).step(action)[0] != action).any()
    still = explore(Categorical(9), default_interaction_type="deterministic")
    assert still.step(action)[0] is action


def test_epsilon_greedy_leaves_its_input_unchanged():
    batch = TensorDict({"action": torch.full((40,), 3)}, [40])
    given = batch["action"]
    explore(Categorical(9))(batch)
    assert (given == 3).all()
    assert batch["action"] is not given


def test_epsilon_greedy_follows_a_policy_in_a_sequence():
    spec = OneHot(4)
    policy = TensorDictSequential(QValueActor(nn.Linear(3, 4), spec=spec), explore(spec))
    batch = TensorDict({"observation": torch.zeros(200, 3)}, [200])
    with set_interaction_type(InteractionType.RANDOM):
        random = policy(batch)["action"].int().argmax(-1)
    with set_interaction_type(InteractionType.DETERMINISTIC):
        greedy = policy(batch)["action"].int().argmax(-1)
    assert random.unique().tolist() == [0, 1, 2, 3]
    assert len(greedy.unique()) == 1


def test_epsilon_greedy_is_seeded_by_torch():
    module, action, found = explore(Categorical(9), eps=0.5), torch.zeros(40).long(), []
    for call in (module.step, lambda a: module(TensorDict({"action": a}, [40])).values()):
        torch.manual_seed(5)
        found.append(tuple(call(action)))
    assert_close(*found)


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (OneHot(4, shape=(2, 4)), torch.zeros(2, 4, dtype=torch.bool)),
        (OneHot(4, shape=(2, 4)), torch.zeros(5, 4, dtype=torch.bool)),
        (OneHot(4), torch.zeros(3, 2, 4, dtype=torch.bool)),
        (Categorical(4, shape=(2,)), torch.zeros(5, dtype=torch.int64)),
        (Categorical(4), torch.zeros((), dtype=torch.int64)),
        (Bounded(1, 2, shape=(3,)), torch.zeros(5, 3)),
        (Bounded(1, 2, shape=()), torch.zeros(5)),
    ],
)
def test_epsilon_greedy_takes_any_batch_of_any_spec(spec, action):
    explored = explore(spec).step(action)[0]
    assert (explored.shape, explored.dtype) == (action.shape, action.dtype)
    assert (explored != action).any() or action.ndim == 0


@pytest.mark.parametrize("kind", [OneHot, Categorical])
def test_random_actions_keep_to_the_mask(kind):
    spec = Composite(action=kind(4))
    module = explore(spec, action_mask_key="allowed")
    allowed = torch.tensor([[True, False, False, True], [False, True, False, False]])
    allowed = allowed.repeat(100, 1)
    action = spec["action"].rand((200,))
    drawn = module(TensorDict({"action": action, "allowed": allowed}, [200]))["action"]
    assert spec["action"].is_in(drawn)
    index = drawn if kind is Categorical else drawn.int().argmax(-1)
    assert set(index[::2].tolist()) == {0, 3}
    assert set(index[1::2].tolist()) == {1}


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"spec": None}, TypeError, "spec is missing"),
        ({"eps_init": 0.1, "eps_end": 0.2}, ValueError, "eps_init=0.1, eps_end=0.2"),
        ({"eps_init": 1.5}, ValueError, "eps_init=1.5"),
        ({"annealing_num_steps": 0}, ValueError, "at least 1: got 0"),
        (
            {"spec": Bounded(0, 1, shape=(2,)), "action_mask_key": "mask"},
            ValueError,
            "a mask needs .* got Bounded",
        ),
    ],
)
def test_wrong_schedules_and_specs_raise(kwargs, error, message):
    with pytest.raises(error, match=message):
        EGreedyModule(**{"spec": Categorical(3), **kwargs})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (-1, ValueError, "negative: got -1"),
        (0.5, TypeError, "got float"),
        (True, TypeError, "got bool"),
        (torch.full((5,), 0.5), TypeError, "torch.int64 by its spec"),
    ],
)
def test_step_refuses_arguments_that_are_neither_action_nor_frames(given, error, message):
    with pytest.raises(error, match=message):
        EGreedyModule(Categorical(3)).step(given)


def test_mask_without_a_choice_raises():
    module = explore(Categorical(3), action_mask_key="mask")
    mask = torch.tensor([[True, False, False], [False, False, False]])
    with pytest.raises(ValueError, match="1 empty rows"):
        module.step(torch.zeros(2).long(), mask)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        (Categorical(4), r"pass action_mask_key='action_mask'"),
        (OneHot(4), r"pass action_mask_key='action_mask'"),
        (MultiCategorical((1, 3)), r"keeps to masks of OneHot and Categorical specs alone"),
    ],
)
def test_a_mask_that_is_not_read_is_warned_of_once(spec, advice):
    module = explore(spec)
    entries = {"action": spec.rand((3,)), "action_mask": torch.ones(3, 4, dtype=torch.bool)}
    with pytest.warns(UserWarning, match=rf"'action_mask' looks like a mask of 4 .*{advice}"):
        module(TensorDict(entries, [3]))
    module(TensorDict(entries, [3]))  # a warning is an error here


def test_what_is_no_mask_of_the_choices_is_not_warned_of():
    flags = torch.ones(4, 4, dtype=torch.bool)
    entries = {"action_mask": flags[:, :3], "mask": flags.float(), "pixels": flags}
    entries |= {
        "action": torch.zeros(4).long(),
        "collector": {"mask": flags[0]},
        "a": {"mask": flags},
    }
    explore(Categorical(4))(TensorDict(entries, [4]))
    explore(Categorical(4), action_mask_key="mask")(TensorDict(entries | {"mask": flags}, [4]))
    entries |= {"action": torch.rand(4, 4), "mask": flags}
    explore(Bounded(0, 1, shape=(4,)))(TensorDict(entries, [4]))


def test_a_mask_is_warned_of_where_a_policy_is_called_on_tensors():
    actor = QValueActor(nn.Linear(3, 4), spec=Categorical(4))
    calls = VerifiedCalls(TensorDictSequential(actor, explore(Categorical(4))))
    entries = {("observation",): torch.rand(5, 3), ("mask",): torch.ones(5, 4, dtype=torch.bool)}
    with pytest.warns(UserWarning, match="pass action_mask_key='mask'"):
        calls(entries, torch.Size([5]))
    assert calls.is_verified
    calls(entries, torch.Size([5]))  # a warning is an error here
    assert not calls.stats()["fallback"]


def test_a_mask_in_the_group_of_the_action_is_warned_of():
    module = explore(Categorical(4), action_key=("agents", "action"))
    group = {"action": torch.zeros(2, 3).long(), "mask": torch.ones(2, 3, 4, dtype=torch.bool)}
    with pytest.warns(UserWarning, match=r"action_mask_key=\('agents', 'mask'\)"):
        module(TensorDict({"agents": group}, [2]))


def test_missing_mask_error_names_the_key():
    module = explore(Categorical(3), action_mask_key="mask")
    with pytest.raises(KeyError, match="'mask' is missing: there are action"):
        module(TensorDict({"action": torch.zeros(2).long()}, [2]))


def test_several_indices_are_replaced_together_or_not_at_all():
    explore = EGreedyModule(MultiCategorical([50, 60]), eps_init=0.5)
    actions = torch.full((300, 2), 99)
    changed = explore.step(actions)[0] != 99
    assert torch.equal(changed[:, 0], changed[:, 1])
    assert 50 < int(changed[:, 0].sum()) < 250


def test_single_column_of_indices_keeps_its_dimension():
    explore = EGreedyModule(MultiCategorical([5]), eps_init=1.0)
    made = explore.step(torch.full((7, 1), 9))[0]
    assert made.shape == (7, 1)
    assert int(made.max()) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1_000, 10_000_000, 50_000_000])
def test_amount_falls_with_every_frame_for_any_number_of_steps(dtype, steps):
    module = EGreedyModule(Categorical(4), eps_end=0.25, annealing_num_steps=steps).to(dtype)
    for _ in range(500):
        module.step(1)
    module.step(steps // 2 - 500)
    assert module.eps == torch.tensor(0.625, dtype=dtype)
    other = EGreedyModule(Categorical(4), eps_end=0.25, annealing_num_steps=steps).to(dtype)
    other.load_state_dict(module.state_dict())
    other.step(steps - steps // 2 - 1)
    other.step(1)
    assert other.eps == 0.25


def test_mask_of_another_width_raises():
    for count in (1, 6):
        module = EGreedyModule(Categorical(4), action_mask_key="mask")
        with pytest.raises(ValueError, match=r"the mask must .* \(5, 4\).*got \(5, \d\)"):
            module.step(torch.zeros(5, dtype=torch.int64), torch.ones(5, count, dtype=torch.bool))


@pytest.mark.parametrize("kind", [Categorical, OneHot])
@pytest.mark.parametrize("shape", [(7, 3), (2, 5, 3), ()])
def test_mask_of_other_rows_is_named(kind, shape):
    module = explore(kind(3), action_mask_key="mask")
    action = kind(3).rand((5,))
    with pytest.raises(ValueError, match=r"the mask must .* \(5, 3\).*: got"):
        module.step(action, torch.ones(shape, dtype=torch.bool))


def test_masks_of_spec_and_step_both_apply():
    spec = Categorical(3, mask=torch.tensor([True, True, False]))
    module = explore(spec, action_mask_key="mask")
    drawn = module.step(torch.zeros(50).long(), torch.tensor([[False, True, True]]).expand(50, 3))
    assert drawn[0].tolist() == [1] * 50
    with pytest.raises(ValueError, match="with that of the spec"):
        module.step(torch.zeros(1).long(), torch.tensor([[False, False, True]]))


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (Categorical(3, (-1,)), torch.zeros(7).long()),
        (OneHot(3, (-1, 3)), torch.zeros(2, 7, 3).bool()),
        (Bounded(0, 1, (-1, 2)), torch.full((7, 2), 9.0)),
        (Bounded(0, 1, (-1,)), torch.full((7,), 9.0)),
    ],
)
def test_dynamic_dimensions_take_the_sizes_of_the_action(spec, action):
    found = explore(spec).step(action)[0]
    assert found.shape == action.shape
    assert spec.is_in(found)


def test_mask_gives_the_number_of_choices():
    module = explore(Categorical(-1), action_mask_key="mask")
    found = module.step(torch.zeros(3).long(), torch.tensor([[False, True, False, False]]))
    assert found[0].tolist() == [1, 1, 1]


def test_choices_in_another_dtype_are_cast():
    found = explore(OneHot(3)).step(torch.eye(3, dtype=torch.int64))[0]
    assert found.dtype == torch.bool
