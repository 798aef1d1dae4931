"""Small critics and batches, and estimates of them by hand."""

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout import keys

GAMMA, LMBDA = 0.9, 0.7

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

STEPS = keys.STEPS_TO_NEXT_OBS


class _Curve(torch.nn.Module):
    """A value that tells every (trajectory, step) from every other."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[0.7], [1.3]], dtype=torch.float64))

    def forward(self, observation):
        return torch.sin(observation.double() @ self.weight)


def _critic():
    return TensorDictModule(_Curve(), ["observation"], ["state_value"])


def _actor():
    logits = TensorDictModule(
        lambda x: torch.sin(x.double() @ torch.tensor([[1.0, 2, 3], [3, 1, 2]]).double()),
        ["observation"],
        ["logits"],
    )
    chance = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    return ProbabilisticTensorDictSequential(logits, chance)


def _prepared(batch):
    """The same batch with rewards in double precision, of which no two are equal, and acts."""
    batch = batch.clone()
    shape = batch.batch_size
    numbers = torch.arange(shape.numel(), dtype=torch.float64)
    batch["next", "reward"] = torch.cos(numbers * 1.7).view(*shape, 1)
    batch["action"] = batch["action"].squeeze(-1)
    batch["sample_log_prob"] = -torch.rand(shape, dtype=torch.float64) * 2
    for name in FLAGS:
        if batch.get(name, None) is None:
            batch[name] = torch.zeros(*shape, 1, dtype=torch.bool)
    return batch


def _trajectories_of(batch):
    """Row numbers of each trajectory of a batch, flattened, by the rule and row by row."""
    flat = batch.reshape(-1)
    size = len(flat)

    def column(key, default):
        value = flat.get(key, None)
        return [default(i) for i in range(size)] if value is None else value.reshape(-1).tolist()

    real = column(keys.MASK, lambda _: True)
    ids, at = column(keys.TRAJ_IDS, lambda _: 0), column(keys.TRAJ_STEP, lambda i: i)
    first, horizon = column(keys.IS_INIT, lambda _: False), column(STEPS, lambda _: 1)
    done = [any(flags) for flags in zip(*(column(k, lambda _: False) for k in FLAGS), strict=True)]
    found, current = [], []
    for i in range(size):
        if real[i]:
            current.append(i)
        j = i + 1
        goes_on = (
            j < size
            and j % batch.shape[-1] != 0
            and (real[i] and real[j])
            and ids[i] == ids[j]
            and at[i] + 1 == at[j]
            and not first[j]
            and not (done[i] and horizon[i] == 1)
        )
        if current and not goes_on:
            found.append(current)
            current = []
    return flat, found


def _values_of(flat, runs):
    """Values of rows and of what follows them; inside a trajectory that is the next row."""
    value, ahead = _Curve()(flat["observation"])[:, 0], _Curve()(flat["next", "observation"])[:, 0]
    value, ahead = value.detach(), ahead.detach()
    for rows in runs:
        ahead[rows[:-1]] = value[rows[1:]]
    return value, ahead


def _by_hand(batch, lmbda, rho=None):
    """Targets by sums over what follows, one trajectory at a time; zero on padding.

    V(sₜ) + Σₖ (γλ)ᵏ (Π c) ρ (r + γ V(s') - V) over the rest of the trajectory.
    """
    flat, runs = _trajectories_of(batch)
    value, ahead = _values_of(flat, runs)
    ahead = torch.where(flat["next", "terminated"][:, 0], 0, ahead)
    rho = torch.ones(len(flat)).double() if rho is None else rho.reshape(-1)
    deltas = (rho * (flat["next", "reward"][:, 0] + GAMMA * ahead - value)).tolist()
    target = torch.zeros(len(flat), dtype=torch.float64)
    for rows in runs:
        for place, i in enumerate(rows):
            total, weight = value[i].item(), 1.0
            for j in rows[place:]:
                total += weight * deltas[j]
                weight *= GAMMA * lmbda * rho[j].item()
            target[i] = total
    return target.view(*batch.batch_size, 1)


def _n_step(batch, n, gamma):
    """N-step rows of a flat batch, by their definition."""
    flat, runs = _trajectories_of(batch)
    out = batch.clone()
    steps = torch.zeros(len(batch), 1, dtype=torch.int64)
    for rows in runs:
        for place, i in enumerate(rows):
            window = rows[place : place + n]
            steps[i] = len(window)
            rewards = [gamma**k * flat["next", "reward"][j] for k, j in enumerate(window)]
            out["next", "reward"][i] = sum(rewards)
            for key in ("observation", "done", "terminated", "truncated"):
                out["next", key][i] = flat["next", key][window[-1]]
    out[keys.STEPS_TO_NEXT_OBS] = steps
    return out


@pytest.fixture(scope="session")
def curve_network():
    """A value that tells every (trajectory, step) from every other."""
    return _Curve


@pytest.fixture(scope="session")
def actor():
    return _actor


@pytest.fixture(scope="session")
def by_hand():
    """Targets by sums over what follows, one trajectory at a time; zero on padding."""
    return _by_hand


@pytest.fixture(scope="session")
def critic():
    return _critic


@pytest.fixture(scope="session")
def n_step():
    """N-step rows of a flat batch, by their definition."""
    return _n_step


@pytest.fixture(scope="session")
def prepared():
    """The same batch with rewards in double precision, of which no two are equal, and acts."""
    return _prepared


@pytest.fixture(scope="session")
def trajectories_of():
    """Row numbers of each trajectory of a batch, flattened, by the rule and row by row."""
    return _trajectories_of


@pytest.fixture(scope="session")
def values_of():
    """Values of rows and of what follows them; inside a trajectory that is the next row."""
    return _values_of
