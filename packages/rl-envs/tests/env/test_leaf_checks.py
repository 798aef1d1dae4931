import pytest
import torch
from tensordict import TensorDict

from rl_envs import TransformedEnv
from rl_envs.env.checks import check_form, check_leaves, check_value, fit_columns
from rl_envs.testing import CountingEnv
from rl_specs import Bounded, Unbounded
from rl_transforms import StepCounter


def test_dynamic_sizes_fit_any():
    spec = Unbounded((3, -1))
    check_form(("a",), spec, torch.zeros(3, 7), torch.Size(), "step")
    with pytest.raises(ValueError, match=r"expected shape \(3, -1\), got \(5, 7\)"):
        check_form(("a",), spec, torch.zeros(5, 7), torch.Size(), "step")


def test_leading_sizes_count():
    check_form(("a",), Unbounded((3,)), torch.zeros(5, 3), torch.Size([5]), "action")
    with pytest.raises(ValueError, match=r"action \('a', 'b'\): expected shape \(5, 3\)"):
        check_form(("a", "b"), Unbounded((3,)), torch.zeros(3), torch.Size([5]), "action")


def test_a_missing_leaf_is_named_with_what_is_there():
    with pytest.raises(KeyError, match=r"'a' is missing, the environment returned \['b'\]"):
        check_leaves([(("a",), Unbounded((3,)))], TensorDict(b=torch.ones(1)), torch.Size(), "step")


def test_long_values_are_summed_up():
    with pytest.raises(ValueError, match=r"got values from 0\.0 to 5\.0"):
        check_value(("a",), Bounded(0, 1, (30,)), torch.arange(30).clamp(max=5).float(), "step")


def test_fit_columns_adds_the_last_dimension_of_flags_and_rewards():
    after = TensorDict({"done": torch.tensor(True), "reward": torch.tensor(1.0)}, [])
    fit_columns(CountingEnv(), after, torch.Size())
    assert after["done"].shape == after["reward"].shape == (1,)
    with pytest.raises(TypeError, match=r"'done': expected dtype torch\.bool, got torch\.int64"):
        fit_columns(CountingEnv(), TensorDict({"done": torch.ones(1).long()}, []), torch.Size())


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
