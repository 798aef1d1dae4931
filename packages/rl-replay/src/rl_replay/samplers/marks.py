"""The markers of a slice sample: where its slices begin and end, told to whoever reads it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.keys import NestedKey, as_tuple
from rl_replay.samplers.slices_of_sample import Slices
from rl_slabs.tensordict_fast import put

Ints = NDArray[np.int64]


def mark_slices(
    sample: TensorDict, slices: Slices, truncated_key: NestedKey | None = keys.NEXT_TRUNCATED
) -> None:
    """Mark, in a sample, where its slices begin and end.

    - `is_init`: True at the first row of each slice, beside the resets that are stored.
    - `truncated_key`: True at the last row of each, unless it is terminated; the done flag beside
      it too. Kinds that the rows lack are added: done without a kind is a termination.
    - `("collector", "slice_ids")`: which slice a row is of.
    - Where slices are padded, `("collector", "mask")` is False on padding, and ids and row numbers
      are -1 there.

    Stored ids, steps and terminations stay as they are.

    Args:
        sample: Copies of the rows `[N]`, on any device; changed in place.
        slices: How they lie in it.
        truncated_key: None leaves the flags of ends as they are stored.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> sample = trajectories([5])
        >>> mark_slices(sample, Slices(np.array([3, 2])))
        >>> sample["is_init"].flatten().tolist(), sample["next", "truncated"].flatten().tolist()
        ([True, False, False, True, False], [False, False, True, False, False])
    """
    put(sample, keys.SLICE_IDS, _tensor(sample, slices.ids))
    _set(_flags(sample, (keys.IS_INIT,)), slices.starts, True)
    if truncated_key is not None:
        _mark_ends(sample, as_tuple(truncated_key), slices.lasts)
    if slices.padded_to is not None:
        _mark_padding(sample, slices)


def _mark_ends(sample: TensorDict, key: tuple[str, ...], lasts: Ints) -> None:
    paths = ((*key[:-1], keys.DONE), (*key[:-1], keys.TERMINATED), key)
    flags = [sample.get(path, None) for path in paths]
    if any(flag is None for flag in flags):
        _complete(sample, paths, flags)
        flags = [sample.get(path) for path in paths]
    if all(flag.is_cpu for flag in flags):
        ended, over, cut = (flag.numpy() for flag in flags)
        cut[lasts] |= ~over[lasts]
        ended[lasts] = True
        return
    rows = _tensor(sample, lasts)
    flags[2][rows] |= ~flags[1][rows]
    flags[0][rows] = True


def _complete(
    sample: TensorDict, paths: tuple[tuple[str, ...], ...], flags: list[torch.Tensor | None]
) -> None:
    """Add the flags of ends that the rows lack, saying what the others say."""
    done, terminated, truncated = flags
    like = next((flag for flag in flags if flag is not None), None)
    no = _new_flags(sample) if like is None else torch.zeros_like(like)
    if done is None:
        done = (no if terminated is None else terminated) | (no if truncated is None else truncated)
    if terminated is None:
        terminated = done if truncated is None else done & ~truncated
    if truncated is None:
        truncated = done & ~terminated
    for path, stored, flag in zip(paths, flags, (done, terminated, truncated), strict=True):
        if stored is None:
            put(sample, path, flag.clone())


def _mark_padding(sample: TensorDict, slices: Slices) -> None:
    real = _tensor(sample, slices.mask)
    stored = sample.get(keys.MASK, None)
    put(sample, keys.MASK, real if stored is None else real & stored)
    for path in (keys.TRAJ_IDS, keys.ROW):
        ids = sample.get(path, None)
        if ids is not None:
            ids[~real] = keys.PADDING_ID


def _flags(sample: TensorDict, path: tuple[str, ...]) -> torch.Tensor:
    """A flag of the sample, which is False everywhere if it was missing."""
    found: torch.Tensor | None = sample.get(path, None)
    if found is None:
        found = _new_flags(sample)
        put(sample, path, found)
    return found


def _new_flags(sample: TensorDict) -> torch.Tensor:
    return torch.zeros(*sample.batch_size, 1, dtype=torch.bool, device=_device(sample))


def _set(flag: torch.Tensor, rows: Ints, value: bool) -> None:
    if flag.is_cpu:
        flag.numpy()[rows] = value
    else:
        flag[torch.from_numpy(rows).to(flag.device)] = value


def _tensor(sample: TensorDict, array: NDArray[np.generic]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    device = _device(sample)
    return tensor if device.type == "cpu" else tensor.to(device)


def _device(sample: TensorDict) -> torch.device:
    leaf = next(iter(sample.values(True, True)), None)
    return torch.device("cpu") if leaf is None else torch.device(leaf.device)
