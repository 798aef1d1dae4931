"""The markers of a batch, written when its steps are finished."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collect.batches.trajectory_ids import TrajectoryIds
from rl_layout import keys


def ends_of(batch: TensorDictBase) -> Tensor:
    """Find the steps that end a trajectory."""
    # The root's done flag decides. If there is none, a trajectory is over when everyone in every
    # group is done at the same step.
    root = batch.get(keys.NEXT_DONE, None)
    flags = [root] if root is not None else _group_flags(batch)
    if not flags:
        msg = "the batch has no done flag under 'next': the environment must return one."
        raise KeyError(msg)
    over = [flag.flatten(batch.ndim).all(-1) for flag in flags]
    return torch.stack(over).all(0).cpu()


def mark(
    batch: TensorDictBase,
    over: Tensor,
    ids: TrajectoryIds,
    *,
    with_ids: bool,
    device: torch.device | None = None,
) -> None:
    """Write `is_init` and, where wanted, ids and steps into a batch, in place."""
    found = [torch.from_numpy(one).to(device) for one in ids.mark(over.numpy())]
    batch.set(keys.IS_INIT, found[0].unsqueeze(-1))
    if with_ids:
        batch.set(keys.TRAJ_IDS, found[1])
        batch.set(keys.TRAJ_STEP, found[2])


def compact(batch: TensorDictBase, observation_keys: list[keys.NestedKey]) -> TensorDictBase:
    """Leave out what a row's successor holds at its root."""
    dropped = [keys.next_key(key) for key in (*observation_keys, keys.IS_INIT)]
    return batch.exclude(*dropped)


def _group_flags(batch: TensorDictBase) -> list[Tensor]:
    found = [leaf for key, leaf in keys.leaves(batch) if (key[0], key[-1]) == keys.NEXT_DONE]
    return [leaf for leaf in found if isinstance(leaf, Tensor)]
