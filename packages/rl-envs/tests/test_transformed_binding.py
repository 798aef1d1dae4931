import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_specs import Unbounded
from rl_transforms import (
    Compose,
    DTypeCastTransform,
    ExcludeTransform,
    InitTracker,
    RenameTransform,
    RewardSum,
    SelectTransform,
    StepCounter,
    TensorDictPrimer,
    Transform,
)


class Shift(Transform):
    def apply_leaf(self, value):
        return value + 10

    def leaf_spec(self, spec):
        return Unbounded(spec.shape, dtype=spec.dtype)


def memory():
    return TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True, default_value=2.0)


CHANGES = {
    "trackers": lambda: Compose(InitTracker(), StepCounter(max_steps=7), RewardSum()),
    "in place": lambda: Shift(["observation"]),
    "new key": lambda: Shift(["observation"], ["shifted"]),
    "cast": lambda: DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    "cast and count": lambda: Compose(
        DTypeCastTransform(torch.float32, torch.float64, ["observation"]), StepCounter(5)
    ),
    "rename": lambda: Compose(
        RenameTransform(["observation"], ["seen"]), RenameTransform(["seen"], ["observation"])
    ),
    "select": lambda: Compose(InitTracker(), SelectTransform("observation")),
    "exclude": lambda: Compose(Shift(["observation"], ["shifted"]), ExcludeTransform("shifted")),
}


def policy():
    torch.manual_seed(2)
    cell, head = nn.Linear(4, 3), nn.Linear(3, 2)

    def step(seen, hidden):
        return torch.tanh(cell(seen.float()) + hidden)

    def act(hidden):
        return nn.functional.one_hot(head(hidden).argmax(-1), 2).bool()

    return TensorDictSequential(
        TensorDictModule(step, ["observation", "hidden"], [("next", "hidden")]),
        TensorDictModule(act, [("next", "hidden")], ["action"]),
    )


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_columns_hold_what_tensordicts_would(name, number):
    batches = []
    for fast in (True, False):
        env = GymEnv("CartPole-v1")
        if number:
            env = SerialEnv(number, lambda: GymEnv("CartPole-v1", max_episode_steps=11))
        env = TransformedEnv(env, Compose(CHANGES[name](), memory()))
        env.native_rows = fast
        env.set_seed(5)
        batches.append(env.rollout(41, policy(), break_when_any_done=False))
    one, other = batches
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert all(torch.equal(one[key], other[key]) for key in one.keys(True, True))
    assert one["hidden"].unique().numel() > 10
