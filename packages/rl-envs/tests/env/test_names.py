"""Names that scripts use for what an environment has under another one."""

import pytest
import torch

from rl_envs import EnvBase, GymEnv, TransformedEnv
from rl_envs.testing import CountingEnv, MultiAgentEnv
from rl_specs import Binary, Bounded, Composite, Unbounded
from rl_transforms import InitTracker, StepCounter


def test_one_key_of_each_role():
    env = CountingEnv()
    assert (env.action_key, env.reward_key, env.done_key) == ("action", "reward", "done")
    assert env.reset_keys == ["_reset"]


def test_keys_of_groups():
    env = MultiAgentEnv(3)
    assert env.reset_keys == ["_reset", ("agents", "_reset")]
    with pytest.raises(KeyError, match=r"expected one done, .* Use done_keys"):
        env.done_key  # noqa: B018


def test_specs_of_what_goes_in_and_what_comes_out():
    env = CountingEnv()
    assert list(env.input_spec.keys()) == ["full_action_spec", "full_state_spec"]
    assert env.input_spec["full_action_spec", "action"] == env.action_spec
    names = ["full_observation_spec", "full_reward_spec", "full_done_spec"]
    assert list(env.output_spec.keys()) == names
    assert all(env.output_spec[name] == getattr(env, name) for name in names)


def test_full_specs_can_be_assigned():
    env, whole = EnvBase(batch_size=(2,)), {}
    for role in ("observation", "action", "reward", "state"):
        leaf = Bounded(0, 1, (2, 3)) if role == "action" else Unbounded((2, 1))
        whole[role] = Composite({f"my_{role}": leaf}, shape=(2,))
        setattr(env, f"full_{role}_spec", whole[role])
    env.full_done_spec = Composite({"done": Binary(shape=(2, 1), dtype=torch.bool)}, shape=(2,))
    for role, spec in whole.items():
        assert getattr(env, f"full_{role}_spec")[f"my_{role}"] == spec[f"my_{role}"].to("cpu")
    assert env.action_key == "my_action"
    assert env.done_keys == ["done", "terminated", "truncated"]


def test_a_transform_around_any_environment():
    base = CountingEnv()
    env = base.append_transform(StepCounter(2))
    assert isinstance(env, TransformedEnv)
    assert env.base_env is base
    assert env.append_transform(InitTracker()) is env
    assert [type(one) for one in env.transform] == [StepCounter, InitTracker]
    assert env.transform is env.transforms


def test_attributes_of_the_environment_inside():
    env = TransformedEnv(CountingEnv(max_steps=7), StepCounter())
    assert env.endings == [(7, "terminated")]
    assert TransformedEnv(GymEnv("CartPole-v1")).x_threshold == GymEnv("CartPole-v1").x_threshold
    with pytest.raises(AttributeError, match="TransformedEnv has no attribute 'depth', and nor"):
        env.depth  # noqa: B018


def test_an_error_of_a_property_stays():
    with pytest.raises(AttributeError, match="has no observation_spec: set it in __init__"):
        TransformedEnv(EnvBase())
