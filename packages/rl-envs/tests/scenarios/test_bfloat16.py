"""Entries of a dtype that numpy lacks, in environments that write rows of numpy."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_layout import step_mdp
from rl_specs import Unbounded
from rl_transforms import DTypeCastTransform, TensorDictPrimer

HALF = torch.bfloat16


def policy(reads=("observation",), writes="half"):
    return TensorDictSequential(
        TensorDictModule(lambda *seen: seen[0].to(HALF) / 3, list(reads), [writes]),
        TensorDictModule(
            lambda half: torch.stack([half.sum(-1) > 0, half.sum(-1) <= 0], -1),
            [writes],
            ["action"],
        ),
    )


def make():
    return GymEnv("CartPole-v1", max_episode_steps=5)


def halved():
    return TransformedEnv(make(), DTypeCastTransform(torch.float32, HALF, ["observation"]))


MAKES = {
    "one": make,
    "serial": lambda: SerialEnv(2, make),
    "vector": lambda: GymVectorEnv("CartPole-v1", 2),
    "native": lambda: GymVectorEnv("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
    "transformed": lambda: TransformedEnv(
        SerialEnv(2, make), TensorDictPrimer({"state": Unbounded((2, 1), dtype=HALF)})
    ),
}


@pytest.mark.parametrize("name", MAKES)
def test_outputs_of_a_policy_are_stored_bit_for_bit(name):
    env = MAKES[name]()
    env.set_seed(3)
    batch = env.rollout(12, policy(), break_when_any_done=False)
    assert batch["half"].dtype == HALF
    assert torch.equal(batch["half"], batch["observation"].to(HALF) / 3)
    assert torch.equal(batch["action"][..., 0], batch["half"].sum(-1) > 0)


def test_an_output_may_change_to_and_from_it_between_rollouts():
    env = make()
    for dtype in (torch.float32, HALF, torch.int16, HALF):
        act = TensorDictModule(
            lambda seen, dtype=dtype: (seen.to(dtype), torch.tensor([True, False])),
            ["observation"],
            ["seen", "action"],
        )
        assert env.rollout(3, act)["seen"].dtype == dtype


@pytest.mark.parametrize("number", [0, 2])
def test_observations_of_it_are_played_through_tensordicts(number):
    env = SerialEnv(number, halved) if number else halved()
    env.set_seed(3)
    batch = env.rollout(4, policy(), break_when_any_done=False)
    assert batch["observation"].dtype == batch["next", "observation"].dtype == HALF
    root = step_mdp(env.step(env.rand_action(env.reset())))
    assert root["observation"].dtype == HALF


def test_observations_of_it_pass_processes():
    with ParallelEnv(2, halved, mp_start_method="fork") as env:
        assert env.rollout(3)["observation"].dtype == HALF


def test_a_vector_that_resets_by_steps_refuses_observations_of_it():
    env = MAKES["native"]()
    env = TransformedEnv(env, DTypeCastTransform(torch.float32, HALF, ["observation"]))
    with pytest.raises(TypeError, match="numpy, which lacks bfloat16"):
        env.rollout(3)
