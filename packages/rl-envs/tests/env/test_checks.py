import pytest
import torch

from rl_envs import TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import StepCounter


@pytest.mark.parametrize(
    ("masks", "kwargs", "told"),
    [
        (torch.ones(1), {}, "masks of a reset"),
        ({}, "text", "by name: got 'text'"),
        ({}, {1: 2}, "1"),
    ],
)
def test_a_reset_asked_for_by_another_environment_names_wrong_arguments(masks, kwargs, told):
    with pytest.raises(TypeError, match=told):
        CountingEnv().reset_checked(None, masks, kwargs)


@pytest.mark.parametrize("root", [None, 1.5, [1]])
def test_a_step_through_an_environment_names_wrong_arguments(root):
    env = TransformedEnv(CountingEnv(), StepCounter(3))
    with pytest.raises(TypeError, match="a root as a tensordict"):
        env.step_through(root, lambda inner, raw: raw)
    with pytest.raises(TypeError, match="a function that steps an environment"):
        env.step_through(env.reset(), root)
