"""Attributes and methods of the environments of a batched one."""

import pytest
import torch

from rl_envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import StepCounter

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class NamedEnv(CountingEnv):
    """Has attributes and methods of its own."""

    def __init__(self, max_steps=5, name="a"):
        super().__init__(max_steps)
        self.name, self.length = name, max_steps

    def greet(self, word, mark="."):
        return f"{word} {self.name}{mark}"

    def fail(self):
        raise LookupError(self.name)


class GrownEnv(NamedEnv):
    """Has as many entries as it is told."""

    def __init__(self, size=1, **kwargs):
        super().__init__(**kwargs)
        from rl_specs import Unbounded

        self.observation_spec = Unbounded((size,))


def serial(*args, **kwargs):
    return SerialEnv(*args, **kwargs)


def parallel(*args, **kwargs):
    return ParallelEnv(*args, mp_start_method="fork", num_processes=2, **kwargs)


@pytest.fixture(params=[serial, parallel])
def batched(request):
    env = request.param(3, NamedEnv, [{"name": name} for name in "xyz"])
    yield env
    env.close()


def test_an_attribute_comes_once_for_each(batched):
    assert batched.name == ["x", "y", "z"]
    assert batched.length == [5, 5, 5]


def test_a_method_is_called_in_each(batched):
    assert batched.greet("hi", mark="!") == ["hi x!", "hi y!", "hi z!"]


def test_one_environment_by_number(batched):
    assert [batched[i].name for i in range(3)] == ["x", "y", "z"]
    assert batched[-1].greet("bye") == "bye z."
    assert [env.name for env in batched[1:]] == ["y", "z"]
    assert [env.name for env in batched] == ["x", "y", "z"]
    with pytest.raises(IndexError):
        batched[3]


def test_an_unknown_attribute_names_both_classes(batched):
    pattern = f"{type(batched).__name__} has no attribute 'depth', and nor has the NamedEnv inside"
    with pytest.raises(AttributeError, match=pattern):
        batched.depth  # noqa: B018
    assert not hasattr(batched, "_depth")
    with pytest.raises(AttributeError, match="'depth'"):
        batched[0].depth  # noqa: B018


def test_an_error_of_a_method_is_raised(batched):
    with pytest.raises(LookupError, match="x"):
        batched.fail()
    assert batched.name == ["x", "y", "z"]


def test_a_closed_one_forwards_nothing(batched):
    batched.close()
    assert not hasattr(batched, "name")


def test_arguments_are_replaced(batched):
    batched.rollout(2)
    batched.update_kwargs([{"max_steps": n} for n in (1, 2, 4)])
    assert batched.name == ["x", "y", "z"]
    assert batched.length == [1, 2, 4]
    with pytest.raises(RuntimeError, match="was not reset"):
        batched.step(batched.rand_action())
    done = batched.rollout(4, break_when_any_done=False)["next", "done"]
    assert done.sum(1).flatten().tolist() == [4, 2, 1]


def test_an_outer_environment_sees_the_new_ones(batched):
    env = TransformedEnv(batched, StepCounter())
    env.rollout(3, break_when_any_done=False)
    env.update_kwargs({"max_steps": 2})
    done = env.rollout(4, break_when_any_done=False)["next", "done"].squeeze(-1)
    assert torch.equal(done, torch.tensor([[False, True, False, True]] * 3))


@pytest.mark.parametrize("make", [serial, parallel])
def test_new_environments_of_other_specs_are_refused(make):
    with make(2, GrownEnv) as env:
        with pytest.raises(ValueError, match="differs from worker 0 in observation_spec"):
            env.update_kwargs([{}, {"size": 3}])
        if isinstance(env, ParallelEnv):
            env.update_kwargs({})  # makes them again, as they were
        env.rollout(2)


def test_a_serial_one_keeps_its_environments_where_a_new_one_cannot_be_made():
    env = SerialEnv(2, NamedEnv)
    old = list(env.envs)
    with pytest.raises(TypeError):
        env.update_kwargs({"colour": 1})
    assert [a is b for a, b in zip(env.envs, old, strict=True)] == [True, True]


def test_environments_inside_can_be_transformed():
    env = SerialEnv(2, lambda: TransformedEnv(NamedEnv(name="t"), StepCounter()))
    assert env.name == ["t", "t"]
    assert isinstance(env[0], EnvBase)


@pytest.mark.parametrize("make", [serial, parallel])
def test_steps_by_hand_reach_the_new_environments(make):
    def limited(max_episode_steps=500):
        return GymEnv("CartPole-v1", max_episode_steps=max_episode_steps)

    with make(2, limited) as env:
        env.step(env.rand_action(env.reset()))
        env.update_kwargs([{"max_episode_steps": 1}, {"max_episode_steps": 2}])
        root, truncated = env.reset(), []
        for _ in range(2):
            step, root = env.step_and_maybe_reset(env.rand_action(root))
            truncated.append(step["next", "truncated"].flatten().tolist())
    assert truncated == [[True, False], [True, True]]
