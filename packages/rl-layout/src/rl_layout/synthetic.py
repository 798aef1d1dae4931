"""Synthetic trajectories with every marker, for examples and tests.

Every observation carries (trajectory, step), so the right neighbour of any row can be proved. All
are on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_layout import keys
from rl_layout.segments.end_kind import EndKind


def trajectories(
    lengths: Sequence[int],
    kinds: Sequence[EndKind] | EndKind = EndKind.TERMINATED,
    *,
    first_id: int = 7,
    first_step: int = 0,
) -> TensorDict:
    """Lay synthetic trajectories end to end in a flat batch, with every marker.

    Args:
        lengths: rows of each trajectory.
        kinds: how each ends, or how all do. A cut one continues elsewhere: nothing marks its end.
        first_id: id of the first trajectory; the others count on.
        first_step: steps that the first trajectory had before the batch begins.

    Returns:
        A TED tensordict ``[N]`` with float32 ``observation [N, 2]`` = (id, step), int64
        ``action [N, 1]``, float32 ``("next", "reward") [N, 1]`` = step + 1, and the markers.

    Raises:
        ValueError: there is no row, or not one kind per trajectory.

    Example:
        >>> batch = trajectories([2, 1], [EndKind.TRUNCATED, EndKind.CUT])
        >>> batch["next", "truncated"].flatten().tolist()
        [False, True, False]
    """
    kinds = [kinds] * len(lengths) if isinstance(kinds, EndKind) else list(kinds)
    if len(kinds) != len(lengths) or not sum(lengths):
        msg = f"expected rows and one kind per trajectory: got {lengths} and {kinds}."
        raise ValueError(msg)
    first_steps = [first_step, *[0] * (len(lengths) - 1)]
    steps = torch.cat(
        [torch.arange(f, f + n, device="cpu") for f, n in zip(first_steps, lengths, strict=True)]
    )
    counts = torch.tensor(lengths, device="cpu")
    ids = first_id + torch.repeat_interleave(torch.arange(len(lengths), device="cpu"), counts)
    last = torch.zeros(len(steps), 1, dtype=torch.bool, device="cpu")
    # running totals - 1: last rows; a trajectory of no rows has none
    last[counts.cumsum(0)[counts > 0] - 1] = True
    kind = torch.repeat_interleave(torch.tensor(kinds, device="cpu"), counts).unsqueeze(-1)
    return ted(ids, steps, last & (kind == EndKind.TERMINATED), last & (kind == EndKind.TRUNCATED))


def ted(ids: Tensor, steps: Tensor, terminated: Tensor, truncated: Tensor) -> TensorDict:
    """Write the TED tensordict of given markers.

    Args:
        ids: int64 ``[*B, T]``.
        steps: int64 ``[*B, T]``.
        terminated: bool ``[*B, T, 1]``.
        truncated: bool ``[*B, T, 1]``.

    Returns:
        The batch ``[*B, T]``, as `trajectories` describes it.

    Example:
        >>> no = torch.zeros(2, 1, dtype=torch.bool)
        >>> ted(torch.tensor([4, 4]), torch.tensor([0, 1]), no, no)["is_init"].flatten().tolist()
        [True, False]
    """
    column = steps.unsqueeze(-1)
    no = torch.zeros_like(terminated)
    after = {
        "observation": torch.stack([ids, steps + 1], -1).float(),
        "reward": (column + 1).float(),
        "done": terminated | truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    root = {
        "observation": torch.stack([ids, steps], -1).float(),
        "action": column % 3,
        "is_init": column == 0,
        "done": no,
        "terminated": no.clone(),
        "truncated": no.clone(),
        "collector": {"traj_ids": ids, "traj_step": steps},
        "next": after,
    }
    names = [*[None] * (ids.ndim - 1), keys.TIME]
    return TensorDict(root, batch_size=ids.shape, names=names)


def environments(
    num_envs: int, num_steps: int, lengths: Sequence[int], kinds: Sequence[EndKind]
) -> TensorDict:
    """Play synthetic environments side by side, trajectories running on across row ends.

    Args:
        num_envs: rows of the batch, B.
        num_steps: steps of each, T.
        lengths: lengths of trajectories, taken in turn by each environment.
        kinds: how they end, taken in turn.

    Returns:
        A TED tensordict ``[B, T]``; a row may begin and end in mid-trajectory.

    Example:
        >>> environments(2, 5, [3, 4], [EndKind.TERMINATED])["collector", "traj_ids"].tolist()
        [[1, 1, 1, 2, 2], [1001, 1001, 1001, 1001, 1002]]
    """
    rows = []
    for env in range(num_envs):
        # each environment begins elsewhere in the list, so that the ends of rows differ
        mine = [lengths[(env + i) % len(lengths)] for i in range(num_steps)]
        ends = [kinds[(env + i) % len(kinds)] for i in range(num_steps)]
        rows.append(trajectories(mine, ends, first_id=1 + 1000 * env)[:num_steps])
    batch: TensorDict = torch.stack([TensorDict(row.to_dict(), [num_steps]) for row in rows])
    batch.names = [None, keys.TIME]
    return batch
