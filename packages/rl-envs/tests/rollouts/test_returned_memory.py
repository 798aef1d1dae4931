"""Environments that return one buffer in several steps, against copies of what they meant."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, SerialEnv
from rl_specs import Unbounded


class Counts(EnvBase):
    """Shows how often it was stepped, in some buffers that it writes to in turn."""

    def __init__(self, number=1, *, copies=0, by_numpy=False, waits=True):
        super().__init__()
        self.observation_spec, self.action_spec = Unbounded((2,)), Unbounded((1,))
        self.waits_for_device = self.check_values = waits
        rows = [np.zeros(2, np.float32) for _ in range(number)]
        self.buffers, self.rows = [torch.from_numpy(row) for row in rows], rows
        self.copies, self.by_numpy, self.count = copies, by_numpy, 0
        self.reward = torch.ones(1)  # a constant: sharing it is no fault

    def shown(self):
        place = self.count % len(self.buffers)
        buffer = self.buffers[place]
        if self.by_numpy:
            self.rows[place][...] = self.count
        else:
            buffer.fill_(self.count)
        self.count += 1
        return buffer.clone() if self.count <= self.copies else buffer

    def _reset(self, tensordict, **kwargs):
        if tensordict is not None and not tensordict["_reset"].any():
            return TensorDict({"observation": torch.zeros(2)}, [])  # ignored
        return TensorDict({"observation": self.shown()}, [])

    def _step(self, tensordict):
        done = torch.zeros(1, dtype=torch.bool)
        found = {"observation": self.shown(), "reward": self.reward, "terminated": done}
        return TensorDict(found, [])

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("waits", [True, False], ids=["tensordicts", "tensors"])
@pytest.mark.parametrize("by_numpy", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_views_of_one_buffer_are_refused_by_the_names_of_both(number, by_numpy, waits):
    env = Counts(number, by_numpy=by_numpy, waits=waits)
    told = f"Counts returned 'observation' of a reset and 'observation' of step {number - 1} in one"
    if number == 1 and not by_numpy:  # the environment notices as soon as torch counts the write
        told = "Counts._step changed 'observation' in place"
    with pytest.raises((ValueError, RuntimeError), match=told):
        env.rollout(5)


def test_a_buffer_of_later_steps_is_found_by_the_count_of_writes():
    told = "'observation' of step 1 and 'observation' of step 3 in one memory"
    with pytest.raises(ValueError, match=told):
        Counts(2, copies=2).rollout(5)


@pytest.mark.parametrize("waits", [True, False], ids=["tensordicts", "tensors"])
def test_copies_and_constants_are_what_the_batch_holds(waits):
    batch = Counts(copies=9, waits=waits).rollout(4)
    assert batch["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert batch["next", "observation"][:, 1].tolist() == [1, 2, 3, 4]
    assert batch["next", "reward"].flatten().tolist() == [1, 1, 1, 1]


def test_rows_that_are_copied_anyway_may_be_views():
    batch = SerialEnv(2, Counts).rollout(3)
    assert batch["next", "observation"][..., 0].tolist() == [[1, 2, 3]] * 2
