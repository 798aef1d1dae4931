"""Collectors and recurrent modules take the fast path with what an ordinary user gives them."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from rl_layout import set_recurrent_mode
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_recurrent import GRUModule, LSTMModule
from rl_transforms import Compose, RewardSum, StepCounter

NAME = "CartPole-v1"
FLAT = "policy: flattened into {} calls on tensors"


def several() -> EnvBase:
    """Three environments of gymnasium, one after another."""
    return SerialEnv(3, lambda: GymEnv(NAME))


def transformed() -> EnvBase:
    """The same with the transforms that most scripts append."""
    return TransformedEnv(several(), Compose(RewardSum(), StepCounter()))


def heads(body: nn.Module | None) -> ProbabilisticActor:
    """An actor of two choices, with a recurrent module of 8 features between its layers, or not."""
    first, last = nn.Linear(4, 8), nn.Linear(8, 2)
    parts = [TensorDictModule(first, ["observation"], ["embedding"])]
    if body is not None:
        parts.append(body)
    parts.append(TensorDictModule(last, ["features" if body else "embedding"], ["logits"]))
    return ProbabilisticActor(
        TensorDictSequential(*parts),
        in_keys=["logits"],
        spec=GymEnv(NAME).action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def gru() -> GRUModule:
    """A GRU of 8 units."""
    out = ["features", ("next", "state")]
    return GRUModule(8, 8, in_keys=["embedding", "state", "is_init"], out_keys=out)


def lstm() -> LSTMModule:
    """An LSTM of 8 units."""
    names = ["embedding", "state", "cell", "is_init"]
    out = ["features", ("next", "state"), ("next", "cell")]
    return LSTMModule(8, 8, in_keys=names, out_keys=out)


@pytest.mark.parametrize("make_env", [several, transformed])
@pytest.mark.parametrize(
    ("make_body", "number"), [(None, 3), (gru, 4), (lstm, 4)], ids=["plain", "gru", "lstm"]
)
def test_a_collector_steps_in_place_and_calls_its_policy_on_tensors(
    make_env: Callable[[], EnvBase], make_body: Callable[[], nn.Module] | None, number: int
) -> None:
    actor = heads(make_body and make_body())
    collector = Collector(
        make_env(),
        actor,
        frames_per_batch=12,
        total_frames=24,
        auto_register_policy_transforms=True,
    )
    for _ in collector:
        steps, policy = collector.explain().splitlines()
        assert steps.startswith("steps: in place"), steps
        assert policy == FLAT.format(number)
    assert collector.stats()["policy"]["verified"]
    assert not collector.stats()["policy"]["fallback"]
    collector.shutdown()


@pytest.mark.parametrize("make_body", [gru, lstm])
def test_a_collected_batch_is_unrolled_over_all_its_segments_at_once(
    make_body: Callable[[], GRUModule | LSTMModule],
) -> None:
    torch.manual_seed(0)
    body = make_body()
    collector = Collector(
        several(),
        heads(body),
        frames_per_batch=120,
        total_frames=120,
        auto_register_policy_transforms=True,
    )
    batch = next(iter(collector))
    with set_recurrent_mode(True):
        rows, backend = body.explain(batch).splitlines()
    assert rows.endswith(f"in 120 rows, the longest {int(rows.split()[-1])}")
    assert int(rows.split()[0]) > 3  # episodes ended, so that segments differ in length
    compiled = find_spec("numba") is not None
    assert backend.startswith("compiled: " if compiled else "pack: ")
    collector.shutdown()
