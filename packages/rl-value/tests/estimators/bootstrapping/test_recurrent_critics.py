import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential

from rl_layout import Segments, keys, recurrent_mode
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import GAE, TD0Estimator

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
HIDDEN = 3


class GRU(TensorDictModuleBase):
    """A recurrent layer that reads whole segments; each starts from the state in its first row."""

    in_keys = ["observation", "state", "is_init"]  # noqa: RUF012 - tensordict's way
    out_keys = ["features", ("next", "state")]  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(2, HIDDEN, dtype=torch.float64)

    def forward(self, batch):
        assert recurrent_mode() is True
        segments = Segments.of(batch)
        seen = segments.gather(batch["observation"]).double()
        states, found = segments.gather(batch["state"]), []
        for start, length in zip(
            segments.offsets.tolist(), segments.lengths.tolist(), strict=False
        ):
            state = states[start : start + 1]
            for i in range(start, start + length):
                state = self.cell(seen[i : i + 1], state)
                found.append(state)
        features = segments.scatter(torch.cat(found))
        batch.set("features", features)
        batch.set(("next", "state"), features)
        return batch


def critic():
    head = torch.nn.Linear(HIDDEN, 1, dtype=torch.float64)
    return TensorDictSequential(GRU(), TensorDictModule(head, ["features"], ["state_value"]))


def prepared(batch):
    batch = batch.clone()
    batch["state"] = torch.randn(*batch.batch_size, HIDDEN, dtype=torch.float64)
    batch["next", "reward"] = torch.randn(*batch.batch_size, 1, dtype=torch.float64)
    return batch


def step_by_step(net, batch):
    """Values and next values of a flat batch, by one step of the cell at a time."""
    cell, head = net[0].cell, net[1].module
    segments = Segments.of(batch)
    value, ahead = [], []
    for start, length in zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True):
        state = batch["state"][start : start + 1]
        for i in range(start, start + length):
            state = cell(batch["observation"][i : i + 1].double(), state)
            value.append(head(state))
            after = cell(batch["next", "observation"][i : i + 1].double(), state)
            ahead.append(head(after))
    return torch.cat(value).detach(), torch.cat(ahead).detach()


@pytest.mark.parametrize(
    "settings", [{}, {"num_chunks": 3}, {"shifted": True, "shifted_budget": 9}]
)
@pytest.mark.parametrize("shape", ["flat", "rows"])
def test_values_equal_those_of_single_steps(settings, shape):
    if shape == "flat":
        batch = prepared(trajectories([4, 1, 3, 5], [*KINDS, EndKind.CUT], first_step=2))
    else:
        batch = prepared(environments(3, 6, [4, 2, 5], KINDS))
    net = critic()
    found = GAE(gamma=0.9, lmbda=0.7, value_network=net, **settings)(batch.clone())
    flat = batch.reshape(-1)
    # row ends cut: whole rows of the batch, one by one
    rows = [batch] if shape == "flat" else list(batch.unbind(0))
    pairs = [step_by_step(net, row) for row in rows]
    value, ahead = (torch.cat(side) for side in zip(*pairs, strict=True))
    torch.testing.assert_close(found["state_value"].reshape(-1, 1), value)
    live = ~flat["next", "terminated"]
    torch.testing.assert_close(found["next", "state_value"].reshape(-1, 1)[live], ahead[live])


def test_a_target_network_unrolls_its_own_states():
    batch = prepared(trajectories([4, 3], EndKind.TRUNCATED))
    net, target = critic(), critic()
    estimator = TD0Estimator(gamma=0.9, value_network=net)
    found = estimator(batch.clone(), target_params=TensorDict.from_module(target))
    torch.testing.assert_close(found["state_value"], step_by_step(net, batch)[0])
    torch.testing.assert_close(found["next", "state_value"], step_by_step(target, batch)[1])


def test_n_step_rows_go_on_behind_their_segment():
    whole = prepared(trajectories([9], EndKind.CUT))
    ahead = whole[2:].clone()
    batch = whole[:7].clone()
    batch["next", "observation"] = whole["next", "observation"][1:8]
    batch[keys.STEPS_TO_NEXT_OBS] = torch.full((7, 1), 2)
    net = critic()
    found = TD0Estimator(gamma=0.9, value_network=net)(batch)
    value = step_by_step(net, whole)[0]
    torch.testing.assert_close(found["state_value"], value[:7])
    torch.testing.assert_close(found["next", "state_value"], value[2:9])
    assert len(ahead) == 7
    with pytest.raises(ValueError, match=r"slices of at least n rows: .*strict_length=True"):
        TD0Estimator(gamma=0.9, value_network=net)(batch[:1])


def test_a_state_under_next_is_not_taken_for_an_observation():
    batch = prepared(trajectories([4, 3], EndKind.TRUNCATED))
    with_state = batch.clone()
    with_state["next", "state"] = torch.zeros(7, HIDDEN, dtype=torch.float64)
    net = critic()
    estimator = GAE(gamma=0.9, lmbda=0.7, value_network=net)
    torch.testing.assert_close(estimator(with_state)["advantage"], estimator(batch)["advantage"])


def test_recurrent_critic_refuses_rows_after_a_lost_observation():
    batch = prepared(trajectories([3], EndKind.CUT))
    batch[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[1], [2], [2]])
    batch[keys.NEXT_MISSING] = torch.tensor([False, True, False])
    batch["next", "observation"][1] = float("nan")
    with pytest.raises(ValueError, match=r"of 1 n-step rows come after one that is missing.*Mark"):
        TD0Estimator(gamma=0.9, value_network=critic())(batch.clone())
    batch[keys.NEXT_MISSING] = torch.tensor([False, True, True])
    found = TD0Estimator(gamma=0.9, value_network=critic())(batch.clone())
    assert found["advantage"].isfinite().all()
    assert (found["advantage"] != 0).flatten().tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, None),
        ({"num_chunks": 2}, None),
        ({"shifted": True}, None),
        ({"single_call": False}, None),
        ({}, 3),
    ],
)
def test_padding_alone_gets_zeros(settings, steps):
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    batch[keys.MASK] = torch.zeros(2, 5, dtype=torch.bool)
    batch["observation"] = torch.full((2, 5, 2), float("nan"))
    if steps is not None:
        batch[keys.STEPS_TO_NEXT_OBS] = torch.full((2, 5, 1), steps)
    net = critic()
    estimator = GAE(gamma=0.9, lmbda=0.7, value_network=net, differentiable=True, **settings)
    found = estimator(batch)
    for key in ("advantage", "value_target", "state_value", ("next", "state_value")):
        assert found[key].shape == (2, 5, 1)
        assert not found[key].any()
        assert not found[key].requires_grad


@pytest.mark.parametrize("settings", [{}, {"num_chunks": 2}, {"single_call": False}])
def test_a_recurrent_critic_is_not_trained_by_its_targets(settings):
    net, batch = critic(), prepared(environments(2, 5, [3, 4], KINDS))
    batch["next", "reward"].requires_grad_()
    found = GAE(gamma=0.9, lmbda=0.7, value_network=net, differentiable=True, **settings)(batch)
    (found["value_target"].sum() + found["advantage"].square().sum()).backward()
    assert all(weight.grad is None for weight in net.parameters())
    assert not found["state_value"].requires_grad


def test_missing_recurrent_state_is_refused_with_how_to_collect_it():
    batch = prepared(trajectories([4, 2])).exclude("state")
    advice = r"'state' is missing: .* state of this network.*TensorDictSequential\(actor, critic\)"
    with pytest.raises(KeyError, match=advice):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic())(batch)
    with pytest.raises(KeyError, match="'observation' is missing") as other:
        GAE(gamma=0.9, lmbda=0.9, value_network=critic())(
            prepared(trajectories([4, 2])).exclude("observation")
        )
    assert "recurrent" not in str(other.value)
