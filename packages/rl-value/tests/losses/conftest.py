"""Small networks and batches for losses of an actor and critics."""

from types import SimpleNamespace

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical, Independent, Normal

from rl_layout import Segments
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
