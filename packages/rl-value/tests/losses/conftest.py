"""Small networks and batches for losses of an actor and critics."""

from types import SimpleNamespace

import pytest
import torch
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions as d
from torch.distributions import Categorical, Independent, Normal

from rl_layout import Segments, keys, recurrent_mode
from rl_layout.testing import EndKind, trajectories

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
SIZE = 2  # of an action


class Joined(torch.nn.Linear):
    """A linear layer of observation and action."""

    def forward(self, observation, action):
        return super().forward(torch.cat([observation, action], -1))

    def zero_(self):
        torch.nn.init.zeros_(self.weight)
        return self


class Box:
    """The bounds of a spec."""

    def __init__(self, size, low, high):
        self.low, self.high = torch.full((size,), low), torch.full((size,), high)


class Spec:
    """What losses read of a spec: a shape and bounds."""

    def __init__(self, low=-1.0, high=1.0, size=SIZE):
        self.shape, self.space = torch.Size([size]), Box(size, low, high)


class Wide(torch.nn.Linear):
    """Mean and deviation of a normal distribution."""

    def forward(self, observation):
        loc, scale = super().forward(observation).chunk(2, -1)
        return loc, scale.exp()

    def zero_(self):
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)


def normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


class Still(Independent):
    """A normal distribution whose samples are its mean, so that nothing depends on chance."""

    def rsample(self, sample_shape=()):
        return self.base_dist.loc.expand(*sample_shape, *self.base_dist.loc.shape)


def still(loc, scale):
    return Still(Normal(loc, scale), 1)


def placed(names, group):
    return [(group, name) for name in names] if group else names


def actor(distribution=normal, group=None):
    parameters = ["loc", "scale"]
    net = TensorDictModule(Wide(2, 2 * SIZE), placed(["observation"], group), parameters)
    return ProbabilisticTensorDictSequential(
        net,
        ProbabilisticTensorDictModule(
            parameters, placed(["action"], group), distribution_class=distribution
        ),
    )


def chooser(group=None):
    net = TensorDictModule(torch.nn.Linear(2, 3), placed(["observation"], group), ["logits"])
    draw = ProbabilisticTensorDictModule(
        ["logits"], placed(["action"], group), distribution_class=Categorical
    )
    return ProbabilisticTensorDictSequential(net, draw)


def action_critic(group=None):
    net = torch.nn.Linear(2, 3)
    return TensorDictModule(net, placed(["observation"], group), placed(["action_value"], group))


def deterministic(group=None):
    net = torch.nn.Sequential(torch.nn.Linear(2, SIZE), torch.nn.Tanh())
    return TensorDictModule(net, placed(["observation"], group), placed(["action"], group))


def critic(group=None):
    read = placed(["observation", "action"], group)
    return TensorDictModule(Joined(2 + SIZE, 1), read, placed(["state_action_value"], group))


def state_critic(group=None):
    net = torch.nn.Linear(2, 1)
    return TensorDictModule(net, placed(["observation"], group), placed(["state_value"], group))


def prepared(batch):
    """The batch in double precision, with actions in [-1, 1]."""
    batch, shape = batch.clone(), batch.batch_size
    batch["action"] = torch.rand(*shape, SIZE, dtype=torch.float64) * 2 - 1
    batch["observation"] = batch["observation"].double() / 10
    batch["next", "observation"] = batch["next", "observation"].double() / 10
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def flat(lengths, turn=0):
    """Trajectories end to end, that end in turn in all ways."""
    kinds = [KINDS[(place + turn) % 3] for place in range(len(lengths))]
    return prepared(trajectories(lengths, kinds))


def ends_of(batch):
    """Rows that end a segment, bool ``[N]``."""
    found = torch.zeros(len(batch), dtype=torch.bool)
    found[Segments.of(batch).offsets[1:] - 1] = True
    return found


def shaken(loss):
    """The loss, with target networks that differ from what they follow."""
    with torch.no_grad():
        for name, value in loss.named_parameters():
            if name.startswith("target_"):
                value.add_(torch.randn_like(value) / 3)
    return loss


def gradients(value, weights):
    return torch.autograd.grad(value, weights, retain_graph=True)


@pytest.fixture(scope="session")
def nets():
    """All of the above, by name."""
    made = [
        actor,
        still,
        chooser,
        action_critic,
        deterministic,
        critic,
        state_critic,
        prepared,
        flat,
        ends_of,
        shaken,
        gradients,
    ]
    return SimpleNamespace(Spec=Spec, SIZE=SIZE, **{one.__name__: one for one in made})


ACTIONS, ATOMS = 3, 5


def _q_network():
    return TensorDictModule(
        torch.nn.Linear(2, ACTIONS, dtype=torch.float64), ["observation"], ["action_value"]
    )


def _q_batch(batch):
    batch = batch.clone()
    shape = batch.batch_size
    batch["action"] = torch.randint(ACTIONS, shape)
    batch["observation"] = batch["observation"].double() / 10
    batch["next", "observation"] = batch["next", "observation"].double() / 10
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def _moved(loss):
    with torch.no_grad():
        for value in loss.target_value_network.parameters():
            value.add_(torch.randn_like(value))


@pytest.fixture(scope="session")
def moved():
    return _moved


@pytest.fixture(scope="session")
def q_network():
    return _q_network


@pytest.fixture(scope="session")
def q_batch():
    return _q_batch


KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


class Modal(torch.nn.Linear):
    """A _linear_layer layer that is only ever called in recurrent mode."""

    def forward(self, x):
        assert recurrent_mode() is True
        return super().forward(x)


def _linear_layer(size):
    return Modal(2, size, dtype=torch.float64)


def _discrete_actor():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(_linear_layer(3), ["x"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=d.Categorical),
    )


def _linear_critic():
    return TensorDictModule(_linear_layer(1), ["x"], ["state_value"])


def _policy_batch(batch):
    batch = batch.clone()
    shape = batch.batch_size
    batch["x"] = torch.randn(*shape, 2, dtype=torch.float64)
    batch["next", "x"] = torch.randn(*shape, 2, dtype=torch.float64)
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    batch["action"] = torch.randint(3, shape)
    batch["sample_log_prob"] = -1 - torch.rand(shape, dtype=torch.float64)
    batch["advantage"] = torch.randn(*shape, 1, dtype=torch.float64)
    batch["value_target"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def _masked(batch):
    """Steps that do not count for each reason there is, with values that would ruin any mean."""
    batch[keys.MASK] = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 1]).bool()
    batch[keys.SHIFTED_VALID] = torch.tensor([1, 0, 1, 1, 1, 1, 1, 1, 1]).bool()
    # the third step terminated, and needs no next observation
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 0]).bool()
    counted = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1]).bool()
    batch["sample_log_prob"][~counted] = -1e30
    batch["advantage"][~counted] = float("nan")
    batch["value_target"][~counted] = float("inf")
    return counted


def _padded(batch):
    """NaN in all that networks read of padding."""
    real = batch[keys.MASK].unsqueeze(-1)
    return batch.set("x", torch.where(real, batch["x"], float("nan")))


def _flat_batch():
    return _policy_batch(trajectories([3, 4, 2], KINDS))


def _continuous_actor():
    def params(x):
        return x, x.exp()

    return ProbabilisticTensorDictSequential(
        TensorDictModule(_linear_layer(2), ["x"], ["h"]),
        TensorDictModule(params, ["h"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"],
            ["action"],
            distribution_class=lambda loc, scale: d.Independent(d.Normal(loc, scale), 1),
        ),
    )


def _composite():
    def params(x):
        return x[..., :3], x[..., 3:5], x[..., 5:].exp()

    keys_out = [("params", "a", "logits"), ("params", "b", "loc"), ("params", "b", "scale")]
    return ProbabilisticTensorDictSequential(
        TensorDictModule(_linear_layer(7), ["x"], ["h"]),
        TensorDictModule(params, ["h"], keys_out),
        ProbabilisticTensorDictModule(
            ["params"],
            [("act", "a"), ("act", "b")],
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": {"a": d.Categorical, "b": d.Normal},
                "name_map": {"a": ("act", "a"), "b": ("act", "b")},
            },
        ),
    )


@pytest.fixture(scope="session")
def composite():
    return _composite


@pytest.fixture(scope="session")
def continuous_actor():
    return _continuous_actor


@pytest.fixture(scope="session")
def linear_critic():
    return _linear_critic


@pytest.fixture(scope="session")
def discrete_actor():
    return _discrete_actor


@pytest.fixture(scope="session")
def flat_batch():
    return _flat_batch


@pytest.fixture(scope="session")
def linear_layer():
    return _linear_layer


@pytest.fixture(scope="session")
def masked():
    """Steps that do not count for each reason there is, with values that would ruin any mean."""
    return _masked


@pytest.fixture(scope="session")
def padded():
    """NaN in all that networks read of padding."""
    return _padded


@pytest.fixture(scope="session")
def policy_batch():
    return _policy_batch
