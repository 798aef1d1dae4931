"""One trajectory per row, padded or jagged, and back to the flat batch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.arguments import check_flags, check_key
from rl_layout.segments.segments import Segments
from rl_tensordict import Dimensions, NestedKey, as_tuple, build, nest, require, tensors
from rl_tensordict.arguments import check_collection
from rl_tensordict.types import LeafTensors


def split_trajectories(
    tensordict: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool = False,
) -> TensorDict:
    """Lay the trajectories of a batch one per row.

    Padded cells hold zeros, trajectory ids -1 in them, and a mask tells the real ones. Rows that
    the batch itself masks out are dropped. The jagged form has neither padding nor mask.

    Args:
        tensordict: a TED tensordict ``[N]`` or ``[*B, T]``.
        prefix: group that the mask is written to, ``"collector"`` by default.
        trajectory_key: split where these ids change, and nowhere else.
        done_key: split after these flags, under ``"next"``, and nowhere else.
        as_nested: give jagged nested tensors.

    Returns:
        A new tensordict ``[S, L]`` with ``(prefix, "mask")``, or ``[S]`` with jagged leaves
        ``[S, j, ...]``, of which ``to_padded_tensor`` makes leaves ``[S, L, ...]`` without a mask;
        `pad_trajectories` gives the padded form with it.

    Raises:
        KeyError: a key, or every marker, is missing.
        ValueError: both keys are given, the batch has no real row, or markers do not fit it.
        TypeError: a leaf is not a tensor.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> split_trajectories(trajectories([2, 3]))["collector", "mask"].int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    check_collection("tensordict", tensordict)
    check_key(prefix, "prefix")
    check_key(trajectory_key, "trajectory_key")
    check_key(done_key, "done_key")
    check_flags(as_nested=as_nested)
    segments = _segments(tensordict, trajectory_key, done_key)
    flat = tensors(tensordict)
    flat.pop(keys.MASK, None)
    if _mask_key(prefix) in flat:
        msg = f"{_mask_key(prefix)} is a leaf of the batch: give another prefix for the mask."
        raise ValueError(msg)
    if as_nested:
        jagged = {key: segments.nest(value) for key, value in flat.items()}
        return build(nest(jagged), torch.Size([len(segments)]), device=tensordict.device)
    # ids of padding are -1: 0 is an id that a trajectory may have
    numbered = {keys.TRAJ_IDS, as_tuple(trajectory_key or keys.TRAJ_IDS)}
    padded = {key: segments.pad(leaf, _fill(key, numbered)) for key, leaf in flat.items()}
    split = _with_mask(padded, segments, prefix, tensordict.device)
    # the mask has no dimensions of agents: the group that holds it keeps those of the batch
    return Dimensions.of(tensordict.exclude(_mask_key(prefix)[0])).give_groups(split)


def join_trajectories(tensordict: TensorDictBase, *, prefix: NestedKey | None = None) -> TensorDict:
    """Lay trajectories end to end again, the inverse of `split_trajectories`.

    Args:
        tensordict: ``[S, L]`` with its mask, or ``[S]`` with jagged leaves.
        prefix: group that holds the mask, ``"collector"`` by default.

    Returns:
        A new flat tensordict ``[N]`` of the real steps, without the mask.

    Raises:
        KeyError: a padded tensordict has no mask.
        ValueError: the mask does not fit it.
        TypeError: a leaf is not a tensor.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> bool((join_trajectories(split_trajectories(batch)) == batch).all())
        True
    """
    check_collection("tensordict", tensordict)
    check_key(prefix, "prefix")
    flat = tensors(tensordict)
    if _is_jagged(flat):
        joined = {key: value.values() for key, value in flat.items()}
    else:
        mask = _mask(tensordict, flat, prefix)
        # real cells of [S, L], row by row: the flat order of the steps
        rows = mask.reshape(-1).nonzero()[:, 0]
        joined = {key: value.flatten(0, 1).index_select(0, rows) for key, value in flat.items()}
    size = next(iter(joined.values())).shape[:1]
    flat_batch = build(nest(joined), size, [keys.TIME], tensordict.device)
    return Dimensions.of(tensordict).give_groups(flat_batch)


def nest_trajectories(tensordict: TensorDictBase, *, prefix: NestedKey | None = None) -> TensorDict:
    """Turn padded trajectories into jagged ones.

    Args:
        tensordict: ``[S, L]`` with its mask, every row real up to its length.
        prefix: group that holds the mask, ``"collector"`` by default.

    Returns:
        A new tensordict ``[S]`` with jagged leaves.

    Raises:
        KeyError: there is no mask.
        ValueError: the mask does not fit, or a row is not real from its first step on.
        TypeError: a leaf is not a tensor.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> nest_trajectories(split_trajectories(trajectories([2, 3])))["action"].is_nested
        True
    """
    check_collection("tensordict", tensordict)
    check_key(prefix, "prefix")
    flat = tensors(tensordict)
    mask = _mask(tensordict, flat, prefix)
    lengths = mask.sum(1)
    # the only mask of such lengths without a hole: [0, L) < lengths[S, 1]
    if not torch.equal(mask, torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(1).nonzero()[0, 0])
        msg = f"row {row} of the mask has a real step after padding: call join_trajectories."
        raise ValueError(msg)
    segments = Segments.from_lengths(lengths)
    joined = tensors(join_trajectories(tensordict, prefix=prefix))
    jagged = {key: segments.nest(value) for key, value in joined.items()}
    return build(nest(jagged), torch.Size([len(segments)]), device=tensordict.device)


def pad_trajectories(tensordict: TensorDictBase, *, prefix: NestedKey | None = None) -> TensorDict:
    """Turn jagged trajectories into padded ones.

    Args:
        tensordict: ``[S]`` with jagged leaves.
        prefix: group that the mask is written to, ``"collector"`` by default.

    Returns:
        A new tensordict ``[S, L]`` with its mask.

    Raises:
        ValueError: the leaves are not jagged.
        TypeError: a leaf is not a tensor.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> jagged = split_trajectories(trajectories([2, 3]), as_nested=True)
        >>> pad_trajectories(jagged).batch_size
        torch.Size([2, 3])
    """
    check_collection("tensordict", tensordict)
    check_key(prefix, "prefix")
    flat = tensors(tensordict)
    if not _is_jagged(flat):
        msg = "expected jagged leaves: got dense ones. Call split_trajectories(as_nested=True)."
        raise ValueError(msg)
    jagged: Any = next(iter(flat.values()))
    # offsets int64 [S + 1]: where each trajectory begins among all steps
    segments = Segments.from_lengths(jagged.offsets().diff())
    numbered: set[tuple[str, ...]] = {keys.TRAJ_IDS}
    # values of a jagged leaf are its flat steps [N, ...]
    padded = {key: segments.pad(leaf.values(), _fill(key, numbered)) for key, leaf in flat.items()}
    return _with_mask(padded, segments, prefix, tensordict.device)


def _segments(
    batch: TensorDictBase, trajectory_key: NestedKey | None, done_key: NestedKey | None
) -> Segments:
    if trajectory_key is not None and done_key is not None:
        msg = f"give trajectory_key or done_key: got {trajectory_key!r} and {done_key!r}."
        raise ValueError(msg)
    mask: Tensor | None = batch.get(keys.MASK, None)
    if trajectory_key is not None:
        segments = Segments.from_ids(_fitting(batch, trajectory_key), mask=mask)
    elif done_key is not None:
        under_next = as_tuple(done_key)[0] == keys.NEXT
        key = done_key if under_next else keys.next_key(done_key)
        # flags end in a dimension of size 1, ids do not
        segments = Segments.from_ends(_fitting(batch, key, 1), mask=mask)
    else:
        segments = Segments.of(batch)
    if not len(segments):
        msg = f"expected real rows: all {segments.num_rows} are masked out."
        raise ValueError(msg)
    return segments


def _fitting(batch: TensorDictBase, key: NestedKey, *trailing: int) -> Tensor:
    value: Tensor = require(batch, key)
    if value.shape != (*batch.batch_size, *trailing):
        expected = [*batch.batch_size, *trailing]
        msg = f"{key!r}: expected shape {expected}, got {list(value.shape)}."
        raise ValueError(msg)
    return value


def _mask(batch: TensorDictBase, flat: LeafTensors, prefix: NestedKey | None) -> Tensor:
    """Take the mask out of the leaves of a padded batch."""
    mask = flat.pop(_mask_key(prefix), None)
    if mask is None:
        msg = f"{_mask_key(prefix)} is missing: no row tells its length."
        raise KeyError(msg)
    if batch.ndim != 2 or mask.shape != batch.batch_size or mask.dtype != torch.bool:
        msg = (
            f"expected trajectories [S, L] and a bool mask of that shape: "
            f"got {list(batch.batch_size)}, and a mask {list(mask.shape)} of {mask.dtype}."
        )
        raise ValueError(msg)
    return mask


def _is_jagged(flat: LeafTensors) -> bool:
    return bool(flat) and all(value.is_nested for value in flat.values())


def _fill(key: tuple[str, ...], numbered: set[tuple[str, ...]]) -> int:
    return keys.PADDING_ID if key in numbered else 0


def _with_mask(
    padded: LeafTensors, segments: Segments, prefix: NestedKey | None, device: torch.device | None
) -> TensorDict:
    place = _mask_key(prefix)
    for end in range(1, len(place)):
        if place[:end] in padded:
            msg = f"prefix: {place[:end]} is a leaf of the batch, no group: give another prefix."
            raise ValueError(msg)
    padded[place] = segments.pad_mask.clone()  # the caller may change it
    return build(nest(padded), segments.pad_mask.shape, [None, keys.TIME], device)


def _mask_key(prefix: NestedKey | None) -> tuple[str, ...]:
    return (*as_tuple(keys.COLLECTOR if prefix is None else prefix), "mask")
