"""An environment that writes to observations it has returned is refused: steps would change."""

import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, TransformedEnv
from rl_specs import OneHot, Unbounded
from rl_transforms import StepCounter


class Counter(EnvBase):
    """Counts to 3; `steps` and `resets` say how the count is moved."""

    def __init__(self, steps, resets):
        super().__init__()
        self.observation_spec = Unbounded((1,))
        self.action_spec = OneHot(2)
        self.count = torch.zeros(1)
        self.steps, self.resets = steps, resets

    def _reset(self, tensordict):
        self.count = self.resets(self.count)
        return TensorDict({"observation": self.count})

    def _step(self, tensordict):
        self.count = self.steps(self.count)
        over = self.count >= 3
        after = {"observation": self.count, "reward": torch.ones(1), "terminated": over}
        return TensorDict(after)

    def _set_seed(self, seed):
        """Nothing is random."""


def plus_one(count):
    return count + 1


def transformed(env):
    return TransformedEnv(env, StepCounter())


@pytest.mark.parametrize("around", [lambda env: env, transformed], ids=["alone", "transformed"])
def test_a_step_that_writes_to_the_observation_before_it_is_refused(around):
    env = around(Counter(lambda count: count.add_(1), torch.zeros_like))
    with pytest.raises(RuntimeError, match=r"Counter\._step changed 'observation' in place"):
        env.rollout(5)


def test_a_reset_that_writes_to_a_final_observation_is_refused():
    env = Counter(plus_one, lambda count: count.zero_())
    with pytest.raises(RuntimeError, match=r"Counter\._reset changed 'observation' in place"):
        env.rollout(5, break_when_any_done=False)


def test_new_tensors_and_the_same_unchanged_one_are_taken():
    rows = Counter(plus_one, torch.zeros_like).rollout(5, break_when_any_done=False)
    assert rows["next", "observation"].flatten().tolist() == [1, 2, 3, 1, 2]
    same = Counter(lambda count: count, torch.zeros_like).rollout(4)
    assert same["observation"].flatten().tolist() == [0, 0, 0, 0]


def test_tensors_without_a_version_are_passed_over():
    with torch.inference_mode():
        rows = Counter(plus_one, torch.zeros_like).rollout(3)
    assert rows["next", "observation"].flatten().tolist() == [1, 2, 3]


class Buffers(Counter):
    """Writes rewards and flags to tensors of its own, as simulators do."""

    def __init__(self, kept):
        super().__init__(plus_one, torch.zeros_like)
        self.reward, self.over, self.kept = torch.zeros(1), torch.zeros(1, dtype=torch.bool), kept

    def _step(self, tensordict):
        after = super()._step(tensordict)
        self.reward += 1
        self.over.copy_(after["terminated"])
        mine = {"reward": self.reward, "terminated": self.over}
        copies = {key: leaf if key == self.kept else leaf.clone() for key, leaf in mine.items()}
        return after.update(copies)


@pytest.mark.parametrize("key", ["reward", "terminated"])
def test_rewards_and_flags_that_are_written_to_again_are_refused(key):
    with pytest.raises(RuntimeError, match=rf"changed '{key}' in place"):
        Buffers(key).rollout(9)
    assert Buffers("none").rollout(9)["next", "reward"].flatten().tolist() == [1, 2, 3]


def test_a_callback_may_change_what_a_step_returned():
    def halve(_, step):
        step["next", "reward"].mul_(0.5)

    rows = Counter(plus_one, torch.zeros_like).rollout(9, callback=halve)
    assert rows["next", "reward"].flatten().tolist() == [0.5, 0.5, 0.5]
