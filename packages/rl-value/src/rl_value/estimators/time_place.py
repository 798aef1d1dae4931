"""Which dimension of a batch is time: the one that is said, the one of that name, or the last."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_layout import compare_neighbours, keys, must_compare_observations


def refuse_misplaced_time(batch: TensorDictBase) -> None:
    """Raise where observations say that time is another dimension than the last one.

    Args:
        batch: a TED tensordict ``[*B, T]``; where it has ids and steps, or names time, it is not
            looked at.

    Raises:
        ValueError: most neighbours along the last dimension contradict each other, and most along
            another one agree.

    Example:
        >>> from rl_layout import EndKind
        >>> from rl_layout import EndKind
        >>> from rl_layout.synthetic import environments
        >>> refuse_misplaced_time(environments(2, 5, [5], [EndKind.CUT]))
    """
    dims: int = batch.ndim
    last = compare_neighbours(batch) if dims > 1 else None
    if last is None or not last.is_rule:
        return
    for dim in range(dims - 1):
        other = compare_neighbours(batch, dim)
        number = 0 if other is None else int(other.compared.sum())
        if other is None or 2 * other.count >= number:
            continue
        names = ", ".join("'time'" if d == dim else "None" for d in range(dims))
        msg = (
            f"time seems to be dimension {dim} of the batch {list(batch.batch_size)}: next "
            f"observations contradict {last.count} of {int(last.compared.sum())} neighbours along "
            f"the last one, and {other.count} of {number} along that. Pass time_dim={dim} to an "
            f"estimator, or name it: names=[{names}] of the tensordict."
        )
        raise ValueError(msg)


def refuse_time_unless_last(batch: TensorDictBase) -> None:
    """Do as `refuse_misplaced_time`, also in compiled code.

    Args:
        batch: a TED tensordict ``[*B, T]``.

    Raises:
        ValueError: as `refuse_misplaced_time`.

    Example:
        >>> from rl_layout import EndKind
        >>> from rl_layout.synthetic import environments
        >>> refuse_time_unless_last(environments(2, 5, [5], [EndKind.CUT]))
    """
    if batch.ndim > 1 and must_compare_observations(batch):
        _look_for_time(batch)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it looks at numbers
def _look_for_time(batch: TensorDictBase) -> None:
    refuse_misplaced_time(batch)


def with_time_last(tensordict: TensorDictBase, dim: int, *, is_said: bool) -> TensorDictBase:
    """Turn a batch so that time is its last dimension, and name it where it was said to be time.

    Args:
        tensordict: the batch; it is not changed.
        dim: dimension of time, from the front.
        is_said: whether the caller said so: then neighbours are not compared.

    Returns:
        The batch itself, or another tensordict of the same tensors.

    Example:
        >>> from tensordict import TensorDict
        >>> with_time_last(TensorDict({}, [2, 3]), 0, is_said=True).names
        [None, 'time']
    """
    last: int = tensordict.ndim - 1
    turned = tensordict if dim == last else tensordict.transpose(dim, last)
    if not is_said:
        return turned
    names = list(turned.names) if turned._has_names() else [None] * turned.ndim
    if names[last] == keys.TIME:
        return turned
    turned = turned.copy()
    turned.names = [*(None if name == keys.TIME else name for name in names[:last]), keys.TIME]
    return turned


def time_dimension(tensordict: TensorDictBase, explicit: int | None) -> int:
    """Find the time dimension of a batch: the given one, the one of that name, or the last.

    Args:
        tensordict: the batch.
        explicit: its number, or None.

    Returns:
        The number, from the front.

    Raises:
        TypeError: it is no number.
        ValueError: there is no batch dimension, or not that one.

    Example:
        >>> from tensordict import TensorDict
        >>> time_dimension(TensorDict({}, [2, 3]), None)
        1
    """
    dims: int = tensordict.ndim
    if not dims:
        msg = "expected a batch [N] or [*B, T]: got batch size []. Stack the steps along time."
        raise ValueError(msg)
    if explicit is None:
        named = tensordict._has_names() and keys.TIME in tensordict.names
        names: list[str | None] = tensordict.names if named else []
        return names.index(keys.TIME) if named else dims - 1
    given: object = explicit
    if not isinstance(given, int):
        msg = f"time_dim is the number of a dimension, an int: got {explicit!r}."
        raise TypeError(msg)
    if isinstance(explicit, bool) or not -dims <= explicit < dims:
        shape = list(tensordict.batch_size)
        msg = f"time_dim={explicit}: the batch is {shape}. Pass {-dims} to {dims - 1}."
        raise ValueError(msg)
    return explicit % dims
