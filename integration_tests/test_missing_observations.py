"""Rows whose last observation a simulator does not give, from a vector to the gradient."""

# ruff: noqa: D102, D103 - the name of a test is its promise

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs import EnvBase, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_policies import OneHotCategorical, ProbabilisticActor, QValueActor
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_specs import OneHot
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DQNLoss,
    ReinforceLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
)

AFTER, MISSING = ("next", "observation"), ("collector", "next_missing")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*final_obs")


class Clocks(VectorEnv[Any, Any, Any]):
    """Row i shows (i, step) and is over after i + 2 steps, cut or ended; gives no last ones."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int = 3) -> None:
        self.num_envs, self.episode = num_envs, 0

    def seen(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.count], 1).astype(np.float32)

    def reset(self, **_: Any) -> Any:
        self.count = np.zeros(self.num_envs, np.int64)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        self.count += 1
        over = self.count == np.arange(self.num_envs) + 2
        self.count[over] = 0
        ends = over & (np.arange(self.num_envs) == 1)  # row 1 ends, the others are cut
        return self.seen(), 1.0 + np.arange(self.num_envs), ends, over & ~ends, {}


def vector() -> EnvBase:
    return GymVectorEnv(Clocks())


def changed(env: EnvBase) -> TransformedEnv:
    """The environment with transforms that act on every step."""
    return TransformedEnv(env, Compose(InitTracker(), RewardSum(), StepCounter()))


def actor() -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(2, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=OneHot(2),
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def critic() -> TensorDictModule:
    return TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])


def collected(make: Callable[[], Any], policy: Any, rows: int = 3) -> TensorDictBase:
    env = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Collector(env, policy, frames_per_batch=rows * 12) as collector:
            batch = collector.next()
    assert batch is not None
    return batch


PLACES: dict[str, tuple[Callable[[], Any], int]] = {
    "vector": (vector, 3),
    "serial": (lambda: SerialEnv(2, vector), 6),
    "parallel": (lambda: ParallelEnv(2, vector, mp_start_method="fork"), 6),
    "transformed": (lambda: changed(vector()), 3),
    "workers, transformed": (
        lambda: changed(ParallelEnv(2, vector, mp_start_method="fork")),
        6,
    ),
    "transformed in workers": (
        lambda: ParallelEnv(2, lambda: changed(vector()), mp_start_method="fork"),
        6,
    ),
}
ESTIMATORS = [
    lambda net, _: GAE(gamma=0.9, lmbda=0.8, value_network=net),
    lambda net, _: TD0Estimator(gamma=0.9, value_network=net),
    lambda net, _: TD1Estimator(gamma=0.9, value_network=net),
    lambda net, _: TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=net),
    lambda net, policy: VTrace(gamma=0.9, actor_network=policy, value_network=net),
]


def counted(batch: TensorDictBase) -> torch.Tensor:
    """Rows that need no next observation, or have it."""
    return ~batch[MISSING] | batch["next", "terminated"].squeeze(-1)


def with_other(batch: TensorDictBase) -> TensorDictBase:
    """The same batch with another thing where nothing is known."""
    other = batch.clone()
    other[AFTER][batch[MISSING]] = 1e4
    return other


@pytest.mark.parametrize("place", PLACES)
def test_rows_at_the_ends_of_episodes_are_marked_wherever_the_vector_is(place: str) -> None:
    make, rows = PLACES[place]
    batch = collected(make, actor(), rows)
    done = batch["next", "done"].squeeze(-1)
    assert done.any()
    assert torch.equal(batch[MISSING], done)
    assert (batch["next", "terminated"].any(-2).sum(-2) > 0).any()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", ESTIMATORS, ids=["gae", "td0", "td1", "td_lambda", "vtrace"])
def test_what_stands_for_a_missing_observation_reaches_no_result(make: Any, place: str) -> None:
    net, policy = critic(), actor()
    batch = collected(*PLACES[place][:1], policy, PLACES[place][1])
    estimate = make(net, policy)
    one, other = estimate(batch.clone()), estimate(with_other(batch))
    for key in ("advantage", "value_target"):
        assert one[key].isfinite().all()
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)


def test_advantages_of_rows_before_a_missing_observation_are_those_by_hand() -> None:
    net, gamma, lmbda = critic(), 0.9, 0.8
    batch = collected(vector, actor())
    found = GAE(gamma=gamma, lmbda=lmbda, value_network=net)(batch.clone())["advantage"]
    value = net.module(batch["observation"]).squeeze(-1)
    after = net.module(batch[AFTER]).squeeze(-1)
    for row in range(3):
        carried = torch.zeros(())
        for t in reversed(range(12)):
            ended = bool(batch["next", "terminated"][row, t])
            if batch["next", "done"][row, t]:
                carried = torch.zeros(())
            if batch[MISSING][row, t] and not ended:
                assert found[row, t] == 0  # left out, and nothing of it is carried back
                continue
            bootstrap = 0.0 if ended else gamma * after[row, t]
            delta = batch["next", "reward"][row, t, 0] + bootstrap - value[row, t]
            carried = delta + gamma * lmbda * carried
            torch.testing.assert_close(found[row, t, 0], carried, rtol=1e-5, atol=1e-5)


POLICY_LOSSES = {
    "ppo": lambda policy, net: ClipPPOLoss(policy, net, entropy_coeff=0.01),
    "a2c": lambda policy, net: A2CLoss(policy, net, entropy_coeff=0.01),
    "reinforce": ReinforceLoss,
}


def gradients(loss: nn.Module, batch: TensorDictBase) -> tuple[dict[str, float], list[Any]]:
    loss.zero_grad()
    found = loss(batch)
    sum(value for name, value in found.items() if name.startswith("loss")).backward()
    values = {name: value.item() for name, value in found.items() if name.startswith("loss")}
    return values, [None if one.grad is None else one.grad.clone() for one in loss.parameters()]


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_policy_losses_are_those_of_the_rows_that_count(name: str) -> None:
    policy, net = actor(), critic()
    batch = collected(PLACES["serial"][0], policy, 6)
    loss = POLICY_LOSSES[name](policy, net)
    data = GAE(gamma=0.9, lmbda=0.8, value_network=net)(batch).detach()
    kept = data[counted(data)].exclude(MISSING)
    assert 0 < len(kept) < data.numel()
    (values, grads), (expected, others) = gradients(loss, data), gradients(loss, kept)
    assert values == pytest.approx(expected, rel=1e-5)
    for one, other in zip(grads, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_loss_of_values_is_that_of_the_rows_that_count_in_slices_of_a_buffer() -> None:
    net = QValueActor(nn.Linear(2, 2), in_keys=["observation"], spec=OneHot(2))
    loss = DQNLoss(net, delay_value=True)
    batch = collected(PLACES["parallel"][0], None, 6)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=4), batch_size=40
    )
    buffer.extend(batch.reshape(-1))
    sample = buffer.sample()
    assert 0 < counted(sample).sum() < len(sample)
    (values, grads), (changed, same) = gradients(loss, sample), gradients(loss, with_other(sample))
    assert values == changed
    kept = sample[counted(sample)].exclude(MISSING)
    expected, others = gradients(loss, kept)
    assert values == pytest.approx(expected, rel=1e-5)
    for one, twin, other in zip(grads, same, others, strict=True):
        if one is not None:
            assert torch.equal(one, twin)
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
