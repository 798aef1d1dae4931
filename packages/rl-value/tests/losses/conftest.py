"""Small networks and batches for losses of an actor and critics."""

from types import SimpleNamespace

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Independent, Normal

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


def actor():
    net = TensorDictModule(Wide(2, 2 * SIZE), ["observation"], ["loc", "scale"])
    return ProbabilisticTensorDictSequential(
        net,
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=normal),
    )


def deterministic():
    net = torch.nn.Sequential(torch.nn.Linear(2, SIZE), torch.nn.Tanh())
    return TensorDictModule(net, ["observation"], ["action"])


def critic():
    return TensorDictModule(Joined(2 + SIZE, 1), ["observation", "action"], ["state_action_value"])


def state_critic():
    return TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])


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
    made = [actor, deterministic, critic, state_critic, prepared, flat, ends_of, shaken, gradients]
    return SimpleNamespace(SIZE=SIZE, **{one.__name__: one for one in made})
