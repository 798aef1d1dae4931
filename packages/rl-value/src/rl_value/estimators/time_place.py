"""The time dimension of a batch: the given one, the one named so, or the last."""

from __future__ import annotations

import warnings

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import (
    Comparison,
    EndKind,
    Segments,
    compare_neighbours,
    keys,
    must_compare_observations,
)
from rl_layout.internals import array_of
from rl_tensordict import UnfitValue, find, names_of
from rl_tensordict.arguments import check_integer
from rl_value.scan.block_scan import is_transformed

LEAST_JOINS = 4
"""Fewer neighbours than this prove nothing: rows drawn at random may be in order by chance."""

NAMED = "Pass time_dim={dim} to an estimator, or name it: names=[{names}] of the tensordict."
TURNED = "Recurrent networks read along the last one: pass batch.transpose({dim}, -1)."


OUTSIDE = (
    "estimators find segments by the numbers of a batch, outside of compiled code and with one "
    "graph break. For one graph compute the advantage ahead: call the estimator outside of what is "
    "compiled with fullgraph=True, or leave fullgraph out"
)
"""Why there is a graph break, as compilers print it."""


def refuse_misplaced_time(batch: TensorDictBase, advice: str = NAMED) -> Comparison | None:
    """Raise where observations say that time is another dimension than the last one."""
    dims = len(batch.batch_size)
    if dims < 2 or not must_compare_observations(batch):
        return None
    last = compare_neighbours(batch)
    if last is None or not last.is_rule:
        return last
    for dim in range(dims - 1):
        other = compare_neighbours(batch, dim)
        number = 0 if other is None else int(other.compared.sum())
        if other is None or 2 * other.count >= number:
            continue
        why = (
            f"next observations contradict {last.count} of {int(last.compared.sum())} neighbours "
            f"along the last one, and {other.count} of {number} along that"
        )
        raise ValueError(_misplaced(batch, dim, why, advice))
    return last


def _misplaced(batch: TensorDictBase, dim: int, why: str, advice: str) -> str:
    names = ", ".join("'time'" if d == dim else "None" for d in range(batch.ndim))
    what = f"time seems to be dimension {dim} of the batch {list(batch.batch_size)}"
    return f"{what}: {why}. {advice.format(dim=dim, names=names)}"


def refuse_scattered_rows(batch: TensorDictBase, segments: Segments, advice: str = NAMED) -> None:
    """Raise or warn where ids and steps join no neighbours, and would along another dimension."""
    count = len(segments)
    if count < LEAST_JOINS or batch.batch_size[-1] < 2 or count != segments.num_real:
        return
    ids, steps = find(batch, keys.TRAJ_IDS), find(batch, keys.TRAJ_STEP)
    if ids is None or steps is None or find(batch, (keys.INDEX,)) is not None:
        return
    dims: int = batch.ndim
    if (names := names_of(batch)) and names[-1] == keys.TIME:
        return
    if dims == 1:
        _warn_of_interleaved(ids, steps, segments)
    for dim in range(dims - 1):
        turned = Segments.of(batch.transpose(dim, -1))
        joined = count - len(turned)
        open_ends = int((turned.kinds == EndKind.CUT).sum()) - count // batch.batch_size[dim]
        number = joined + max(0, open_ends)
        if joined < 2 or 2 * joined <= number:
            continue
        why = f"ids and steps join no neighbours along the last one, and {joined} of {number} "
        raise ValueError(_misplaced(batch, dim, why + "along that", advice))


def _warn_of_interleaved(ids: Tensor, steps: Tensor, segments: Segments) -> None:
    """Warn where rows of each id are in order with rows of others between them."""
    rows = array_of(segments.starts.cpu())
    sorted_ids, sorted_steps = (array_of(leaf.detach().cpu())[rows] for leaf in (ids, steps))
    order = sorted_ids.argsort(kind="stable")
    sorted_ids, sorted_steps = sorted_ids[order], sorted_steps[order]
    same = sorted_ids[1:] == sorted_ids[:-1]
    number = int((same & (sorted_steps[1:] == sorted_steps[:-1] + 1)).sum())
    if number < LEAST_JOINS or number != int(same.sum()):
        return
    msg = (
        f"{number} of {len(ids)} rows continue an earlier row of their trajectory, and none from "
        "the row before: environments are interleaved, and nothing is carried from step to step. "
        "Lay trajectories end to end: batch.transpose(0, -1).reshape(-1) of the batch [T, N]."
    )
    warnings.warn(msg, UserWarning, stacklevel=2)


def refuse_time_unless_last(batch: TensorDictBase) -> None:
    """Do as `refuse_misplaced_time` for recurrent networks, also in compiled code."""
    # Ids and steps are looked at outside of compiled code only: what they say is a fact of data.
    if batch.ndim > 1 and must_compare_observations(batch):
        _look_for_time(batch)
    elif not is_transformed() and _is_numbered(batch):
        refuse_scattered_rows(batch, Segments.of(batch), TURNED)


def _is_numbered(batch: TensorDictBase) -> bool:
    """Whether a batch of rows has ids and steps."""
    stored = (find(batch, key) is not None for key in (keys.TRAJ_IDS, keys.TRAJ_STEP))
    return bool(batch.batch_size.numel()) and all(stored)


@torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
def _look_for_time(batch: TensorDictBase) -> None:
    refuse_misplaced_time(batch, TURNED)


def time_last(
    tensordict: TensorDictBase, explicit: int | None
) -> tuple[TensorDictBase, int | None]:
    """Transpose time to the last dimension; also returns its former one, None if it was last.

    Time is the given dimension, which is named so, or the one of that name, or the last.
    """
    dims = len(tensordict.batch_size)
    if not dims:
        msg = "expected a batch [N] or [*B, T]: got batch size []. Stack the steps along time."
        raise UnfitValue(msg)
    if explicit is None:
        names = names_of(tensordict) or []
        dim = names.index(keys.TIME) if keys.TIME in names else dims - 1
    else:
        dim = _checked(tensordict, explicit)
    turned = tensordict if dim == dims - 1 else tensordict.transpose(dim, dims - 1)
    return turned if explicit is None else _named(turned), None if dim == dims - 1 else dim


def _checked(tensordict: TensorDictBase, dim: int) -> int:
    """A dimension that a caller gave, counted from the front."""
    check_integer("time_dim", dim)
    shape = list(tensordict.batch_size)
    if not -len(shape) <= dim < len(shape):
        msg = f"time_dim={dim}: the batch is {shape}. Pass {-len(shape)} to {len(shape) - 1}."
        raise ValueError(msg)
    return dim % len(shape)


def _named(turned: TensorDictBase) -> TensorDictBase:
    """The same batch, whose last dimension is named time."""
    *others, last = names_of(turned) or [None] * turned.ndim
    if last == keys.TIME:
        return turned
    turned = turned.copy()
    turned.names = [*(None if name == keys.TIME else name for name in others), keys.TIME]
    return turned
