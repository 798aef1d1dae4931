"""Losses of action values in compiled code: one graph, and the numbers of code that is not."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch.nn import functional as F

from rl_layout import keys, must_compare_observations
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import DistributionalDQNLoss, DQNLoss, TD0Estimator
from rl_value.estimators.static_shapes import StaticTransitions

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
ACTIONS, ATOMS = 3, 5
ENTRIES = {name: name for name in ("reward", "done", "terminated", "steps_to_next_obs")}


def network():
    layer = torch.nn.Linear(2, ACTIONS, dtype=torch.float64)
    return TensorDictModule(layer, ["observation"], ["action_value"])


def of_values(**settings):
    return DQNLoss(network(), action_space="categorical", **settings)


def of_distributions(**settings):
    shape = torch.nn.Sequential(
        torch.nn.Linear(2, ATOMS * ACTIONS, dtype=torch.float64),
        torch.nn.Unflatten(-1, (ATOMS, ACTIONS)),
        torch.nn.LogSoftmax(-2),
    )
    net = TensorDictModule(shape, ["observation"], ["action_value"])
    support = torch.linspace(-2, 2, ATOMS, dtype=torch.float64)
    settings = {"action_space": "categorical", "support": support, **settings}
    return DistributionalDQNLoss(net, gamma=0.9, **settings)


def prepared(flat=True):
    batch = trajectories([3, 4, 2], KINDS) if flat else environments(2, 5, [3, 4], KINDS)
    shape = batch.batch_size
    batch["action"] = torch.randint(ACTIONS, shape)
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].double() / 10
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def masked(batch):
    """Leave steps out, and put into them what must have no effect."""
    number = torch.arange(batch.numel()).view(batch.batch_size)
    batch[keys.MASK] = (number != 4) & (number != 8)
    batch[keys.NEXT_MISSING] = (number == 2) | (number == 6)
    batch["next", "observation"][batch[keys.NEXT_MISSING]] = float("nan")
    batch["next", "reward"][~batch[keys.MASK]] = float("nan")
    batch["observation"][~batch[keys.MASK]] = 1e6
    return batch


def n_step(batch):
    """Rows of up to three steps, of three segments of a flat batch."""
    steps = torch.tensor([3, 2, 1, 3, 3, 2, 1, 2, 1])
    ends = steps + torch.arange(9) - 1
    for key in ("observation", "done", "terminated", "truncated"):
        batch["next", key] = batch["next", key][ends]
    batch[keys.STEPS_TO_NEXT_OBS] = steps[:, None]
    return batch


def both_ways(loss, batch, backend="eager"):
    """What a loss gives and writes, of parameters that it is given: as one graph, and not."""
    torch.compiler.reset()
    given = {name: torch.randn_like(value) for name, value in loss.named_parameters()}
    learning = [x.requires_grad_() for name, x in given.items() if not name.startswith("target_")]

    def call(batch):
        return torch.func.functional_call(loss, given, (batch,))["loss"], batch

    for made in (torch.compile(call, backend=backend, fullgraph=True), call):
        value, written = made(batch.clone())
        marks = written["td_error"], written.get(keys.NEXT_MISSING, None)
        yield value, *marks, torch.autograd.grad(value.sum(), learning)


@pytest.mark.parametrize(("flat", "mask"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize("settings", [{}, {"double_dqn": True}, {"delay_value": False}])
@pytest.mark.parametrize("make", [of_values, of_distributions])
def test_a_loss_is_one_graph_and_equals_the_uncompiled_one(make, settings, flat, mask):
    batch = prepared(flat)
    found, expected = both_ways(make(**settings), masked(batch) if mask else batch, "aot_eager")
    torch.testing.assert_close(found, expected)
    assert expected[0].isfinite()


@pytest.mark.parametrize("make", [of_values, of_distributions])
def test_compiled_loss_of_n_step_rows_equals_the_eager_one(make):
    batch = n_step(prepared())
    batch[keys.MASK] = torch.arange(9) != 4
    torch.testing.assert_close(*both_ways(make(double_dqn=True), batch))


@pytest.mark.parametrize("name", ["steps_to_next_obs", "far"])
@pytest.mark.parametrize(
    ("steps", "message"), [(0, "1 or more steps, got 0"), (2**40, "at most 2,147,483,647 steps")]
)
def test_compiled_loss_refuses_wrong_numbers_of_steps(steps, message, name):
    batch = n_step(prepared()).rename_key_(keys.STEPS_TO_NEXT_OBS, ("next", name))
    batch["next", name][4] = steps
    loss = of_values()
    loss.set_keys(steps_to_next_obs=name)
    torch.compiler.reset()
    with pytest.raises(ValueError, match=f"{name}.*: expected {message}"):
        torch.compile(loss, backend="eager", fullgraph=True)(batch)


@pytest.mark.parametrize("change", [masked, n_step])
@pytest.mark.parametrize(
    ("kind", "gamma"),
    [("td0", torch.tensor(0.9)), ("td1", 0.9), ("td_lambda", torch.linspace(0, 1, 9)[:, None])],
)
def test_compiled_loss_of_any_estimator_equals_the_eager_one(kind, gamma, change):
    loss = of_values(reduction="none").make_value_estimator(kind, gamma=gamma)
    torch.testing.assert_close(*both_ways(loss, change(prepared()), backend="eager"))


@pytest.mark.parametrize("make", [of_values, of_distributions])
def test_compiled_loss_without_next_observations_equals_the_eager_one(make):
    batch = prepared().exclude(("next", "observation"))
    found, expected = both_ways(make(), batch)
    torch.testing.assert_close(found, expected)
    assert found[2].tolist() == [step in (6, 8) for step in range(9)]


@pytest.mark.parametrize("double", [False, True])
def test_compiled_loss_of_a_network_that_chooses_equals_the_eager_one(double, chooser):
    batch = prepared()
    batch["action"] = F.one_hot(batch["action"], ACTIONS)
    batch["allowed"] = batch["next", "allowed"] = torch.rand(9, 3) > 0.3
    loss = DQNLoss(chooser, action_space="one_hot", double_dqn=double)
    torch.testing.assert_close(*both_ways(loss, batch))


class Memory(TensorDictModuleBase):
    """Sums up what it observed in a segment, from the state in its first row on."""

    in_keys = ["observation", "state", "is_init"]  # noqa: RUF012 - tensordict's way
    out_keys = ["action_value", ("next", "state")]  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, ACTIONS, dtype=torch.float64)

    def forward(self, batch):
        rows = zip(*(batch[key].unbind(0) for key in self.in_keys), strict=True)
        state, found = batch["state"][0], []
        for seen, stored, first in rows:
            state = torch.where(first, stored, state) / 2 + self.layer(seen)
            found.append(state)
        summed = torch.stack(found)
        batch.set("action_value", summed)
        batch.set(("next", "state"), summed)
        return batch


@pytest.mark.parametrize("change", [lambda batch: batch, masked])
def test_compiled_loss_of_a_recurrent_network_equals_the_eager_one(change):
    batch = change(prepared())
    batch["state"] = torch.randn(9, ACTIONS, dtype=torch.float64)
    torch.testing.assert_close(*both_ways(DQNLoss(Memory(), action_space="categorical"), batch))


class Named(Memory):
    """The same, of rows whose order a name tells."""

    def forward(self, batch):
        if "next" in batch.keys():  # noqa: SIM118 - no mapping
            assert not must_compare_observations(batch)
        return super().forward(batch)


@pytest.mark.parametrize("change", [lambda batch: batch, masked])
def test_compiled_losses_give_networks_the_name_of_time(change):
    batch = change(prepared()).exclude(keys.TRAJ_IDS, keys.TRAJ_STEP)
    batch["state"] = torch.randn(9, ACTIONS, dtype=torch.float64)
    batch.names = ["time"]
    torch.testing.assert_close(*both_ways(DQNLoss(Named(), action_space="categorical"), batch))


@pytest.mark.parametrize(
    "settings", [{"num_chunks": 2}, {"missing_next": "root"}, {"average_rewards": True}]
)
def test_estimates_without_a_fixed_shape_are_computed_outside_of_the_graph(settings):
    loss, batch = of_values().make_value_estimator("td0", gamma=0.9, **settings), prepared()
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="eager")
    torch.testing.assert_close(compiled(batch.clone())["loss"], loss(batch)["loss"])


@pytest.mark.filterwarnings("ignore:.*no step of this batch counts")
def test_rows_that_are_all_padding_have_no_target():
    batch = prepared()
    batch[keys.MASK] = torch.zeros(9, dtype=torch.bool)
    found, expected = both_ways(of_values(), batch)
    torch.testing.assert_close(found, expected)
    assert found[0] == 0


def test_flags_of_other_names_end_trajectories_too():
    batch = prepared()
    loss = of_values().make_value_estimator("td_lambda", gamma=0.9)
    expected = loss(batch.clone())["loss"]
    for name in ("done", "terminated"):
        batch["next", "my", name] = batch["next", name]
    shown = batch.exclude(("next", "done"), ("next", "terminated"), "is_init", "collector")
    loss.set_keys(done=("my", "done"), terminated=("my", "terminated"))
    torch.compiler.reset()
    found = torch.compile(loss, backend="eager", fullgraph=True)(shown)["loss"]
    torch.testing.assert_close(found, expected)


def test_static_transitions_make_padding_an_end_without_successor():
    batch = masked(prepared())
    batch["state_value"] = batch["next", "state_value"] = torch.randn(9, 1, dtype=torch.float64)
    steps = StaticTransitions.of(batch, ENTRIES)
    assert steps.ends.tolist() == [i in (2, 3, 4, 6, 7, 8) for i in range(9)]
    assert steps.successor.tolist() == [1, 2, 9, 9, 9, 6, 9, 9, 9]
    assert steps.segments.real.tolist() == batch[keys.MASK].tolist()
    target = TD0Estimator(gamma=0.9, value_network=None)(batch.clone())["value_target"]
    assert target.isfinite().all()


def test_static_steps_name_missing_keys():
    with pytest.raises(KeyError, match=r"'reward'\) is missing"):
        StaticTransitions.of(prepared().exclude(("next", "reward")), ENTRIES)
    shown = prepared().exclude(("next", "done"), ("next", "terminated"))
    with pytest.raises(KeyError, match="are missing: without them no target knows"):
        StaticTransitions.of(shown, ENTRIES)


def test_compiled_code_does_not_warn_of_rows_that_were_drawn_one_by_one():
    below = {"observation": torch.randn(20, 2).double(), "reward": torch.ones(20, 1).double()}
    below |= {key: torch.zeros(20, 1, dtype=torch.bool) for key in ("done", "terminated")}
    rows = {"observation": torch.randn(20, 2).double(), "next": below}
    batch = TensorDict({**rows, "action": torch.zeros(20, dtype=torch.int64)}, [20])
    loss = torch.compile(of_values(), backend="eager")
    loss(batch.clone().set("index", torch.arange(20)))  # warnings are errors in tests
    with pytest.warns(UserWarning, match="neighbours along dimension 0"):
        loss(batch.clone())
