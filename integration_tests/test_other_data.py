"""Collectors over environments whose observations are no plain tensors."""

import pytest
import torch
from tensordict import TensorDict

from rl_collect import Collector
from rl_envs import EnvBase, SerialEnv
from rl_specs import Composite, NonTensor, OneHot, Unbounded, stack_specs


class Mixed(EnvBase):
    """Two agents that see 2 and 3 numbers, and a text; over after three steps."""

    def __init__(self):
        super().__init__()
        self.count = 0
        agents = stack_specs([Composite(observation=Unbounded((n,))) for n in (2, 3)], 0)
        text = NonTensor((), example_data="")
        self.observation_spec = Composite(agents=agents, text=text)
        self.action_spec = OneHot(2)

    def _show(self):
        return self.observation_spec.one().set_non_tensor("text", f"step {self.count}")

    def _reset(self, tensordict):
        self.count = 0
        return self._show()

    def _step(self, tensordict):
        self.count += 1
        after = {"reward": torch.ones(1), "terminated": torch.tensor([self.count == 3])}
        return self._show().update(TensorDict(after, []))

    def _set_seed(self, seed):
        """Nothing is random."""


@pytest.mark.parametrize("make", [Mixed, lambda: SerialEnv(2, Mixed)], ids=["alone", "serial"])
def test_a_collector_takes_texts_and_agents_that_differ(make):
    """Texts and steps are those of their trajectories, from batch to batch."""
    collector = Collector(make, None, frames_per_batch=8, total_frames=16)
    batches = list(collector)
    collector.shutdown()
    for start, batch in zip((0, batches[0].shape[-1]), batches, strict=True):
        texts = [step["text"] for step in batch.reshape(-1, batch.shape[-1])[0]]
        assert texts == [f"step {(start + n) % 3}" for n in range(batch.shape[-1])]
        assert batch["agents"][..., 1]["observation"].shape == (*batch.shape, 3)
        steps = batch["collector", "traj_step"].reshape(-1, batch.shape[-1])[0]
        assert steps.tolist() == [(start + n) % 3 for n in range(batch.shape[-1])]
