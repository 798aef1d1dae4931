"""The collector: plays a policy and writes one row per step, with every marker."""

import secrets
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from skeleton.environments import CartPoleEnv, CountingEnv


class Collector:
    """Plays environments in turn, row by row, and continues where its last batch stopped.

    Args:
        environments: each fills one row of the batch, [B].
        policy: adds its outputs to a root, and its recurrent state after the step under "next".
        primer: recurrent keys and their defaults, which every reset puts at the root.
        producer: high 31 bits of the trajectory ids; drawn where it is not given.
    """

    def __init__(
        self,
        environments: Sequence[CountingEnv | CartPoleEnv],
        policy: Callable[[TensorDictBase], TensorDictBase],
        primer: TensorDictBase,
        producer: int | None = None,
    ) -> None:
        self.environments, self.policy, self.primer = environments, policy, primer
        self.producer = secrets.randbits(31) if producer is None else producer
        self.trajectories = self.policy_version = 0  # who changes the weights raises the version
        self.roots = [self._reset(environment) for environment in environments]

    def collect(self, num_steps: int) -> TensorDictBase:
        """Play ``num_steps`` in each environment, rows [B, T]; the batch ends no trajectory."""
        played: list[list[TensorDictBase]] = [[] for _ in self.environments]
        for _ in range(num_steps):
            for b, environment in enumerate(self.environments):
                root = self.policy(self.roots[b])
                root[keys.POLICY_VERSION] = torch.tensor(self.policy_version)
                row = environment.step(root)
                played[b].append(row)
                self.roots[b] = self._reset(environment) if row[keys.NEXT_DONE] else _advance(row)
        batch = TensorDict.stack([TensorDict.stack(rows) for rows in played])
        batch.names = [None, keys.TIME]
        return batch

    def _reset(self, environment: CountingEnv | CartPoleEnv) -> TensorDictBase:
        traj_id = (self.producer << 32) + self.trajectories
        self.trajectories += 1
        return _mark(environment.reset().update(self.primer), True, traj_id, 0)


def _advance(row: TensorDictBase) -> TensorDictBase:
    root = row[keys.NEXT].exclude(keys.REWARD, *keys.DONE_KEYS)
    return _mark(root, False, int(row[keys.TRAJ_IDS]), int(row[keys.TRAJ_STEP]) + 1)


def _mark(root: TensorDictBase, is_init: bool, traj_id: int, traj_step: int) -> TensorDictBase:
    root[keys.IS_INIT] = torch.tensor([is_init])
    root[keys.TRAJ_IDS] = torch.tensor(traj_id)
    root[keys.TRAJ_STEP] = torch.tensor(traj_step)
    return root
