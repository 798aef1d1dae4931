import pytest
import torch

from rl_envs import EnvBase
from rl_envs.testing import CountingEnv, MultiAgentEnv, NestedEnv
from rl_specs import Binary, Bounded, Unbounded


def test_action_spec_is_the_one_leaf_or_a_composite_of_several():
    assert CountingEnv().action_spec.n == 2
    assert NestedEnv().reward_spec.shape == (1,)
    assert set(MultiAgentEnv(3).done_spec.keys()) == {"agents", "done", "terminated", "truncated"}


def test_specs_are_locked():
    env = CountingEnv()
    for spec in (env.observation_spec, env.full_action_spec, env.full_done_spec, env.state_spec):
        with pytest.raises(RuntimeError, match="locked"):
            spec["more"] = Unbounded((3,))


def test_reward_and_done_specs_get_a_last_dimension():
    env = EnvBase(batch_size=(3,))
    env.reward_spec = Unbounded((3,))
    env.done_spec = Binary(shape=(3,), dtype=torch.bool)
    assert env.reward_spec.shape == (3, 1)
    assert [env.done_spec[key].shape for key in env.done_keys] == [(3, 1)] * 3


def test_a_spec_without_the_batch_size_is_refused():
    env = EnvBase(batch_size=(3,))
    with pytest.raises(ValueError, match=r"begin with the batch size \(3,\): got \(5,\)"):
        env.action_spec = Bounded(0, 1, (5,))


def test_a_missing_spec_is_named():
    for name in ("observation_spec", "action_spec"):
        with pytest.raises(AttributeError, match=f"EnvBase has no {name}"):
            getattr(EnvBase(), name)


def test_specs_before_the_batch_size_are_refused():
    class Hasty(EnvBase):
        def __init__(self):
            self.observation_spec = Unbounded((1,))

    with pytest.raises(RuntimeError, match=r"call super\(\).__init__\(batch_size=...\) first"):
        Hasty()
