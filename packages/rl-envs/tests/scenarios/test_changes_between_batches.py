"""What changes between two rollouts of one player, or of one worker, shows in the second."""

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import (
    GymEnv,
    GymVectorEnv,
    ParallelEnv,
    RolloutPlayer,
    RolloutRequest,
    SerialEnv,
    TransformedEnv,
)
from rl_envs.testing import GroupsEnv
from rl_transforms import InitTracker, ObservationNorm, StepCounter

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
STEPS = RolloutRequest(4, break_when_any_done=False, continues=True)


def cart_pole():
    return GymEnv("CartPole-v1")


def moved_pendulum(loc=0.0):
    norm = ObservationNorm(loc=loc, scale=1.0, in_keys=["observation"], out_keys=["moved"])
    env = GymEnv("Pendulum-v1")
    env.check_values = False  # what is moved is outside of the bounds
    return TransformedEnv(env, norm)


def chosen(loc):
    """One of two actions, one-hot, whatever the network says."""
    return torch.tensor([False, True]).expand(*loc.shape[:-1], 2)


def agent(width, name):
    return TensorDictSequential(
        TensorDictModule(nn.Linear(4, 3), ["observation"], ["loc"]),
        TensorDictModule(nn.Linear(3, width), ["loc"], [name]),
        TensorDictModule(chosen, ["loc"], ["action"]),
    )


@pytest.mark.parametrize(("width", "name"), [(1, "other"), (5, "value")])
def test_outputs_of_a_replaced_part_are_not_in_later_batches(width, name):
    policy = agent(1, "value")
    player = RolloutPlayer(cart_pole(), policy)
    first = player.play(STEPS)
    policy.module[1] = TensorDictModule(nn.Linear(3, width), ["loc"], [name])
    second = player.play(STEPS)
    assert ("value" in second) == (name == "value")
    with torch.no_grad():
        # one product of four rows rounds otherwise than four of one
        torch.testing.assert_close(second[name], policy.module[1].module(second["loc"]))
    assert torch.equal(second["observation"][0], first["next", "observation"][-1])


def test_a_callable_may_write_other_entries_in_later_batches():
    calls = []

    def act(root):
        calls.append(1)
        if len(calls) > 4:
            root["extra"] = torch.ones(2)
        kind = torch.bool if len(calls) < 9 else torch.int64
        return root.set("action", torch.tensor([0, 1], dtype=kind))

    player = RolloutPlayer(cart_pole(), act)
    held = ["extra" in player.play(STEPS) for _ in range(3)]
    assert held == [False, True, True]


def test_a_root_that_other_steps_left_behind_is_not_taken_for_the_last():
    player = RolloutPlayer(cart_pole())
    player.play(STEPS)
    seen = RolloutRequest(4, break_when_any_done=False, callback=lambda env, step: None)
    batch = player.play(seen)
    assert torch.equal(player.root_after(batch)["observation"], batch["next", "observation"][-1])


def test_a_transform_that_counts_from_now_on_is_stepped():
    counter = StepCounter()
    player = RolloutPlayer(TransformedEnv(cart_pole(), counter))
    player.play(STEPS)
    counter.max_steps, counter.online = 2, True
    over = player.play(STEPS)["next", "truncated"].flatten().tolist()
    assert over == [False, True, False, True]


def test_parameters_of_a_loaded_state_act_in_workers():
    saved = SerialEnv(2, lambda: moved_pendulum(5.0))
    saved.reset()
    env = ParallelEnv(2, moved_pendulum, mp_start_method="fork")
    try:
        env.rand_step(env.reset())
        env.load_state_dict(saved.state_dict())
        batch = env.rollout(3)
    finally:
        env.close()
    for part in (batch, batch["next"]):
        assert torch.equal(part["moved"], part["observation"] + 5)


@pytest.mark.parametrize("transform", [InitTracker, StepCounter])
def test_workers_step_groups_without_a_root_flag(transform):
    envs = [
        ParallelEnv(2, lambda: TransformedEnv(GroupsEnv(), transform()), mp_start_method="fork"),
        SerialEnv(2, lambda: TransformedEnv(GroupsEnv(), transform())),
    ]
    try:
        batches = []
        for env in envs:
            torch.manual_seed(3)  # of the random actions
            batches.append(env.rollout(9, break_when_any_done=False))
    finally:
        for env in envs:
            env.close()
    first, second = batches
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    assert all(torch.equal(first[key], second[key]) for key in first.keys(True, True))


@pytest.mark.parametrize(
    "make",
    [cart_pole, lambda: SerialEnv(2, cart_pole), lambda: GymVectorEnv("CartPole-v1", 2)],
    ids=["one", "in turn", "vector"],
)
def test_rows_of_a_reset_are_not_done(make):
    env = make()
    rows = {key: np.ones(spec.shape, spec.zero().numpy().dtype) for key, spec in env.layout.shown}
    env.reset_into(rows)
    flags = [rows[key] for key, _ in env.layout.done]
    assert flags
    assert not any(flag.any() for flag in flags)
    env.close()
