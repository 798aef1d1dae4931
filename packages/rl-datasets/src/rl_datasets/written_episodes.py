"""Episodes of a buffer, of batches or of a collector, to be written in a format."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from rl_datasets.episodes import Episode
from rl_layout import Segments, keys
from rl_replay import ReplayBuffer, TensorStorage
from rl_tensordict import as_tuple, find, leaves
from rl_tensordict.types import Array, KeyPath

Steps: TypeAlias = ReplayBuffer | TensorDictBase | Iterable[TensorDictBase]

_MARKS: set[KeyPath] = {(keys.IS_INIT,), (keys.INDEX,), *((name,) for name in keys.DONE_KEYS)}
_STEP_LEAVES = (*keys.DONE_KEYS, keys.REWARD)
_MARKS |= {keys.NEXT_DONE, keys.STEPS_TO_NEXT_OBS}


@contextmanager
def new_dataset(folder: Path) -> Iterator[Path]:
    """Where to write a dataset that gets its folder once it is whole; there must be none yet."""
    if folder.exists():
        raise FileExistsError(f"there is a dataset in {folder}: delete it, or take another id.")
    making = folder.with_name(f"{folder.name}.writing")
    shutil.rmtree(making, ignore_errors=True)
    try:
        yield making
        making.replace(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def episodes_of(
    data: Steps, *, drop_missing: bool = False, keep_missing: bool = False
) -> Iterator[Episode]:
    """The trajectories of some steps, each observation once."""
    # A leaf that is there before and after a step is an observation; the last one of a trajectory
    # is what its last row has under `"next"`.
    for number, rows in enumerate(_trajectories(data)):
        episode = _episode(rows, number, drop=drop_missing, keep=keep_missing)
        if len(episode):
            yield episode


def _trajectories(data: Steps) -> Iterator[TensorDictBase]:
    if isinstance(data, ReplayBuffer):
        yield from _of_buffer(data)
    elif is_tensor_collection(data):
        yield from _of_batches([data])
    elif isinstance(data, Iterable):
        yield from _of_batches(data)
    else:
        raise TypeError(
            f"expected a buffer, a tensordict or an iterable of tensordicts, got "
            f"{type(data).__name__}."
        )


def _of_buffer(buffer: ReplayBuffer) -> Iterator[TensorDictBase]:
    """Trajectories by the index of the storage, the oldest first."""
    storage = buffer.storage
    if not isinstance(storage, TensorStorage):
        raise TypeError(f"a {type(storage).__name__} has no trajectories: use a LazyTensorStorage.")
    if not len(storage):
        return
    index = storage.trajectories()
    slots = index.slots()
    lengths, zeros = index.lengths_of(slots), np.zeros(1, np.int64)
    first = np.array([index.rows(slots[i : i + 1], zeros, zeros + 1)[0] for i in range(len(slots))])
    for place in np.argsort(first):
        numbers = index.rows(slots[place : place + 1], zeros, lengths[place : place + 1])
        yield storage.read(storage.ring.positions(torch.from_numpy(numbers)))


def _of_batches(batches: Iterable[TensorDictBase]) -> Iterator[TensorDictBase]:
    """Trajectories of batches; pieces of an unfinished one wait for the rest of it."""
    waiting: dict[int, list[TensorDictBase]] = {}
    for batch in batches:
        if not isinstance(batch, TensorDictBase):
            raise TypeError(f"expected tensordicts, got {type(batch).__name__}.")
        flat = batch.reshape(-1) if batch.ndim != 1 else batch
        if (mask := find(flat, keys.MASK)) is not None:
            flat = flat[mask]
        for piece in flat.split(_lengths(flat)):
            ids = find(piece, keys.TRAJ_IDS)
            if ids is None:
                yield piece
                continue
            name = int(ids[0])
            waiting.setdefault(name, []).append(piece)
            if bool(piece[keys.NEXT_DONE][-1].any()):
                yield _whole(waiting.pop(name))
    for pieces in waiting.values():
        yield _whole(pieces)


def _lengths(flat: TensorDictBase) -> list[int]:
    found: list[int] = Segments.of(flat).lengths.tolist()
    return found


def _whole(pieces: list[TensorDictBase]) -> TensorDictBase:
    if len(pieces) == 1:
        return pieces[0]
    whole: TensorDictBase = torch.cat(pieces)
    steps = find(whole, keys.TRAJ_STEP)
    if steps is not None and bool((steps.diff() != 1).any()):
        raise ValueError(
            f"steps of trajectory {int(whole[keys.TRAJ_IDS][0])} are missing between batches: "
            "write a buffer, or trajectories that are whole."
        )
    return whole


def _episode(rows: TensorDictBase, number: int, *, drop: bool, keep: bool) -> Episode:
    place = f"trajectory {number}"
    columns = {as_tuple(key): leaf for key, leaf in leaves(rows)}
    missing = columns.get(keys.NEXT_MISSING)
    count, has_last = len(rows), True
    if missing is not None and bool(missing.any()):
        if not (drop or keep) or not bool(missing[-1]) or int(missing.sum()) > 1:
            raise ValueError(
                f"{place}: the next observation of {int(missing.sum())} rows is missing, and the "
                "format wants each: drop_missing=True leaves last steps without one out."
            )
        has_last, count = not keep, count - drop
    arrays = {path: leaf.detach().cpu().numpy() for path, leaf in columns.items()}
    seen = {}
    for path, before in arrays.items():
        after = arrays.get((keys.NEXT, *path))
        if after is not None and path not in _MARKS and path[-1] not in _STEP_LEAVES:
            once = _once(path, before, after, count, place)
            seen[path] = once if has_last else once[:count]
    known = {*_MARKS, *((keys.NEXT, *path) for path in seen), *seen}
    rest = {p: _flat(p, a)[:count] for p, a in arrays.items() if p not in known}
    rest = {p: a for p, a in rest.items() if p[0] != keys.COLLECTOR}
    for flag in (keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        rest.setdefault(flag, np.zeros(count, bool))
    return Episode(seen, rest, place, number)


def _once(path: KeyPath, before: Array, after: Array, count: int, place: str) -> Array:
    """Observations of all steps, and the last one after them."""
    unlike = np.ascontiguousarray(before[1:count]).tobytes() != after[: max(count - 1, 0)].tobytes()
    if unlike:
        raise ValueError(
            f"{place}: next observations {path} differ from the observations of the rows after "
            "them, as after n-step or normalising transforms: write rows as the environment made "
            "them."
        )
    if count == len(before):
        return np.concatenate([before, after[-1:]])
    return before[: count + 1]


def _flat(path: KeyPath, column: Array) -> Array:
    """A column; rewards and flags without their last dimension."""
    is_single = path in (keys.NEXT_REWARD, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)
    return column[:, 0] if is_single and column.shape[1:] == (1,) else column


def written_columns(episode: Episode) -> dict[KeyPath, Any]:
    """Columns of an episode apart from reward and flags."""
    known = {keys.NEXT_REWARD, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED}
    return {path: column for path, column in episode.columns.items() if path not in known}
