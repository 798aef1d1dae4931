"""The markers of a slice sample: where its slices begin and end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, is_tensor_collection

from rl_layout import keys
from rl_replay.samplers.slice_bounds import Slices
from rl_tensordict import NestedKey, as_tuple, find, insert

Ints = NDArray[np.int64]
TERMINATIONS = frozenset({keys.TERMINATED, "terminal", "terminals"})  # names of columns of ends
TRUNCATIONS = frozenset({keys.TRUNCATED, "timeout", "timeouts"})


def mark_slices(
    sample: TensorDict,
    slices: Slices,
    truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
    end_keys: Sequence[NestedKey] = (),
) -> None:
    """Mark, in a sample, where its slices begin and end.

    - `is_init`: True at the first row of each slice, alongside the resets that are stored.
    - `truncated_key`: True at the last row of each, unless it is terminated; the done flag too
      it too. Kinds that the rows lack are added: done without a kind is a termination. So is an
      end that only `end_keys` know, unless its column is named like a truncation.
    - `("collector", "slice_ids")`: which slice a row is of.
    - Where slices are padded, `("collector", "mask")` is False on padding, and ids and row numbers
      are -1 there.

    Stored ids, steps and terminations stay as they are.

    Args:
        sample: Copies of the rows `[N]`, on any device; changed in place.
        slices: How they are in it.
        truncated_key: None leaves the flags of ends as they are stored.
        end_keys: Columns of ends alongside the contract's, for flags that the rows lack.

    Raises:
        TypeError: `sample` or `slices` is of another kind.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> sample = trajectories([5])
        >>> mark_slices(sample, Slices(np.array([3, 2])))
        >>> sample["is_init"].flatten().tolist(), sample["next", "truncated"].flatten().tolist()
        ([True, False, False, True, False], [False, False, True, False, False])
    """
    if not (is_tensor_collection(sample) and isinstance(slices, Slices)):
        raise TypeError(
            "mark_slices takes a tensordict and Slices, got "
            f"{type(sample).__name__} and {type(slices).__name__}: use Slices(lengths)."
        )
    firsts = find(sample, (keys.IS_INIT,))
    if firsts is None:
        firsts = _new_flags(sample)
        insert(sample, (keys.IS_INIT,), firsts)
    _set(firsts, slices.starts)
    insert(sample, keys.SLICE_IDS, _like(firsts, slices.ids))
    if truncated_key is not None:
        key = truncated_key if isinstance(truncated_key, tuple) else as_tuple(truncated_key)
        _mark_ends(sample, key, slices.lasts, end_keys)
    if slices.padded_to is not None:
        _mark_padding(sample, slices)


def _mark_ends(
    sample: TensorDict, key: tuple[str, ...], lasts: Ints, end_keys: Sequence[NestedKey]
) -> None:
    paths = ((*key[:-1], keys.DONE), (*key[:-1], keys.TERMINATED), key)
    found = [find(sample, path) for path in paths]
    done, terminated, truncated = _complete(sample, paths, found, end_keys)
    if done.is_cpu:
        cut = truncated.numpy()
        cut[lasts] |= ~terminated.numpy()[lasts]
        done.numpy()[lasts] = True
        return
    rows = _like(done, lasts)
    truncated[rows] |= ~terminated[rows]
    done[rows] = True


def _complete(
    sample: TensorDict,
    paths: Sequence[tuple[str, ...]],
    flags: Sequence[torch.Tensor | None],
    end_keys: Sequence[NestedKey],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add those flags of ends that the rows lack, saying what the others say."""
    done, terminated, truncated = flags
    if done is not None and terminated is not None and truncated is not None:
        return done, terminated, truncated
    like = next((flag for flag in flags if flag is not None), None)
    no = _new_flags(sample) if like is None else torch.zeros_like(like)
    ends, terminal, cut = _named_ends(sample, [as_tuple(key) for key in end_keys], paths, no)
    cut = cut if truncated is None else cut | truncated
    if done is None:
        done = ends | cut if terminated is None else ends | cut | terminated
    if terminated is None:
        terminated = terminal | (done & ~cut)
    if truncated is None:
        truncated = cut | (done & ~terminated)
    for path, flag in zip(paths, (done, terminated, truncated), strict=True):
        insert(sample, path, flag)
    return done, terminated, truncated


def _named_ends(
    sample: TensorDict,
    columns: Sequence[tuple[str, ...]],
    known: Sequence[tuple[str, ...]],
    no: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ends of all columns but known ones, and those named like a termination and a truncation."""
    ends, terminal, cut = no, no, no
    for column in columns:
        found = None if column in known else find(sample, column)
        if found is None:
            continue
        flag = found != 0
        if flag.numel() != no.numel():
            flag = flag.reshape(len(no), -1).any(1).reshape(-1, *[1] * (no.ndim - 1))
            flag = flag.expand_as(no)
        flag = flag.reshape(no.shape)
        ends = ends | flag
        if column[-1] in TERMINATIONS:
            terminal = terminal | flag
        elif column[-1] in TRUNCATIONS:
            cut = cut | flag
    return ends, terminal, cut


def _mark_padding(sample: TensorDict, slices: Slices) -> None:
    real = _like(sample.get(keys.IS_INIT), slices.mask)
    stored = find(sample, keys.MASK)
    insert(sample, keys.MASK, real if stored is None else real & stored)
    for path in (keys.TRAJ_IDS, keys.ROW):
        ids = find(sample, path)
        if ids is not None:
            ids[~real] = keys.PADDING_ID


def _new_flags(sample: TensorDict) -> torch.Tensor:
    leaf = next(iter(sample.values(True, True)), None)
    device = None if leaf is None else leaf.device
    return torch.zeros(*sample.batch_size, 1, dtype=torch.bool, device=device)


def _set(flag: torch.Tensor, rows: Ints) -> None:
    if flag.is_cpu:
        flag.numpy()[rows] = True
    else:
        flag[_like(flag, rows)] = True


def _like(leaf: torch.Tensor, array: NDArray[np.generic]) -> torch.Tensor:
    """An array as a tensor on the device of a leaf of the sample."""
    return torch.from_numpy(array) if leaf.is_cpu else torch.tensor(array, device=leaf.device)
