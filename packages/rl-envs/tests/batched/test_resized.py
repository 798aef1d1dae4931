"""Environments in another batch size play what they play in their own."""

import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, GymEnv, ResizedEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.testing import CountingEnv, NestedEnv
from rl_envs.testing.conformance import check_conformance
from rl_specs import Bounded, Unbounded
from rl_transforms import RewardSum, StepCounter


class Drifting(EnvBase):
    """Its state is in its data: it has as many rows as a reset asks for."""

    batch_locked = False

    def __init__(self):
        super().__init__()
        self.observation_spec = Unbounded((3,))
        self.action_spec = Bounded(-1, 1, (3,))

    def _reset(self, tensordict):
        size = () if tensordict is None else tensordict.batch_size
        done = torch.zeros(*size, 1, dtype=torch.bool)
        return TensorDict({"observation": torch.zeros(*size, 3), "done": done}, size)

    def _step(self, tensordict):
        seen = tensordict["observation"] + tensordict["action"]
        reward = seen.sum(-1, keepdim=True)
        after = {"observation": seen, "reward": reward, "done": seen.amax(-1, True) > 2}
        return TensorDict(after, seen.shape[:-1])

    def _set_seed(self, seed):
        torch.manual_seed(seed)


def six():
    return SerialEnv(6, [lambda n=n: CountingEnv(max_steps=n + 2) for n in range(6)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ResizedEnv(six(), (2, 3)),
        lambda: ResizedEnv(CountingEnv(max_steps=3), (1, 1)),
        lambda: ResizedEnv(SerialEnv(1, lambda: GymEnv("CartPole-v1")), ()),
        lambda: ResizedEnv(SerialEnv(4, NestedEnv), (2, 2)),
    ],
    ids=["two by three", "one by one", "none", "groups"],
)
def test_it_keeps_the_promises_of_every_environment(make):
    check_env_specs(make())
    check_conformance(make)


def test_rows_are_those_of_the_environment_inside_in_the_same_order():
    plain, other = six(), ResizedEnv(six(), (2, 3))
    expected = plain.rollout(9, break_when_any_done=False)
    found = other.rollout(9, break_when_any_done=False)
    assert found.names == [None, None, "time"]
    found = found.reshape(6, 9)
    for key in ("observation", ("next", "observation"), ("next", "done"), ("next", "reward")):
        assert torch.equal(found[key], expected[key])
    assert found["next", "done"].sum() > 6


def test_an_environment_that_is_not_locked_gets_rows():
    env = TransformedEnv(ResizedEnv(Drifting(), (5,)), StepCounter(4), RewardSum())
    check_env_specs(env)
    batch = env.rollout(13, break_when_any_done=False)
    assert batch.shape == (5, 13)
    first = batch["step_count"].squeeze(-1) == 0
    assert first.sum() >= 15
    assert (batch["observation"][first] == 0).all()
    later = ~first[:, 1:]
    seen = batch["next", "observation"][:, :-1][later]
    assert torch.equal(batch["observation"][:, 1:][later], seen)


def test_other_numbers_of_rows_are_refused_by_name():
    with pytest.raises(ValueError, match=r"\(2, 2\) has 4 rows.* batch size \(6,\) has 6"):
        ResizedEnv(six(), (2, 2))
    inside = ResizedEnv(Drifting(), (5,))
    inside.batch_locked = False
    with pytest.raises(ValueError, match=r"not batch-locked .* has batch size \(5,\)"):
        ResizedEnv(inside, (5,))
    with pytest.raises(TypeError, match="an environment"):
        ResizedEnv(CountingEnv, (5,))


def begin_at(values):
    return lambda given, root: root.set("observation", torch.as_tensor(values).view(3, 1))


def test_a_reset_function_gives_each_row_a_root_of_its_own():
    env = ResizedEnv(SerialEnv(3, CountingEnv), (3,), reset_func=begin_at([5.0, 6.0, 7.0]))
    root = env.reset()
    assert root["observation"].flatten().tolist() == [5, 6, 7]
    _, root = env.step_and_maybe_reset(env.rand_action(root))
    mask = torch.tensor([[False], [True], [False]])
    again = env.reset(root.set("_reset", mask))
    # rows that continue keep what they showed
    assert again["observation"].flatten().tolist() == [1, 6, 1]


def test_a_reset_function_sees_what_the_reset_was_given_and_the_environment():
    seen = []

    def note(given, root, env):
        seen.append((None if given is None else sorted(given.keys()), env))
        return root

    env = ResizedEnv(SerialEnv(3, CountingEnv), (3,), reset_func=note, env_kwarg=True)
    root = env.reset()
    mask = torch.tensor([[False], [True], [False]])
    env.reset(TensorDict({"_reset": mask, **root}, [3]))
    assert [one for _, one in seen] == [env, env]
    assert seen[0][0] is None
    assert "_reset" in seen[1][0]


def test_a_reset_function_that_loses_rows_is_refused():
    env = ResizedEnv(SerialEnv(3, CountingEnv), (3,), reset_func=lambda given, root: root[:2])
    with pytest.raises(ValueError, match=r"batch size \(2,\): expected \(3,\)"):
        env.reset()
    with pytest.raises(TypeError, match="reset_func: expected a function"):
        ResizedEnv(SerialEnv(3, CountingEnv), (3,), reset_func=7)
