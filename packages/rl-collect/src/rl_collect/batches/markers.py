"""The markers of a batch, written when its steps are finished."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collect.batches.trajectory_ids import TrajectoryIds
from rl_layout import keys


def ends_of(batch: TensorDictBase) -> Tensor:
    """Find the steps that end a trajectory.

    The root's done flag decides. Where there is none, a trajectory is over when everyone in every
    group is done at the same step.

    Args:
        batch: `[*B, T]`, with done flags under `"next"`.

    Returns:
        bool `[*B, T]`.

    Raises:
        KeyError: there is no done flag at all.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> ends_of(trajectories([2, 1])).tolist()
        [False, True, True]
    """
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
    """Write `is_init` and, where wanted, ids and steps into a batch, in place.

    Args:
        batch: `[*B, T]`, what follows the batch before.
        over: bool `[*B, T]`, the steps that end a trajectory.
        ids: goes on from the batch before.
        with_ids: write ids and steps as well.
        device: where the batch lies; the CPU where None.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({}, [3])
        >>> mark(batch, torch.tensor([False, True, False]), TrajectoryIds((), 0), with_ids=True)
        >>> batch["collector", "traj_step"].tolist()
        [0, 1, 0]
    """
    found = [torch.from_numpy(one).to(device) for one in ids.mark(over.numpy())]
    batch.set(keys.IS_INIT, found[0].unsqueeze(-1))
    if with_ids:
        batch.set(keys.TRAJ_IDS, found[1])
        batch.set(keys.TRAJ_STEP, found[2])


def compact(batch: TensorDictBase, observation_keys: list[keys.NestedKey]) -> TensorDictBase:
    """Leave out what a row's successor holds at its root.

    Args:
        batch: `[*B, T]`. It is not changed.
        observation_keys: of observations and states.

    Returns:
        A new batch without them under `"next"`. Rewards and done flags stay.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> ("next", "observation") in compact(trajectories([2]), ["observation"]).keys(True)
        False
    """
    dropped = [keys.next_key(key) for key in (*observation_keys, keys.IS_INIT)]
    return batch.exclude(*dropped)


def _group_flags(batch: TensorDictBase) -> list[Tensor]:
    found = [leaf for key, leaf in keys.leaves(batch) if (key[0], key[-1]) == keys.NEXT_DONE]
    return [leaf for leaf in found if isinstance(leaf, Tensor)]
