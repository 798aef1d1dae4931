"""Dumps whose rows are changed by hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase

from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.storage import checked_window
from rl_replay.checkpoint.writer import dump
from rl_replay.storages import Storage, TensorStorage
from rl_replay.storages.positions import positions_by_age
from rl_replay.storages.tensor import plan_of
from rl_tensordict import as_tuple

Hook = Callable[[TensorDictBase], TensorDictBase]
CHANGED = "changed"


class ChangedRows(NamedTuple):
    """Rows as load hooks restored them, and what the dump says of the others that it holds."""

    rows: TensorDictBase  # [N] or [*B, T], the oldest first
    first: int | None  # The row id of the oldest one; None if rows were left out or added
    capacity: int  # Of the storage that was dumped
    lanes: int  # Of that storage


def dump_rows(
    storage: Storage, path: str, hooks: Sequence[Hook], more: Mapping[str, Any] | None = None
) -> None:
    """Writes the rows of a storage as save hooks change them, and other parts."""
    window = storage.ring.window()
    rows = storage.read(_by_age(storage))
    for hook in hooks:
        rows = hook(_tensordict(rows, hook))
    head = {"first": list(window.first), "counts": list(window.counts)}
    changed = _parts_of(_tensordict(rows, None))
    dump(path, {CHANGED: changed, "ring": {**head, "capacity": storage.max_size}, **(more or {})})


def changed_rows(storage: Storage, archive: Archive, hooks: Sequence[Hook]) -> ChangedRows | None:
    """The rows of a dump that hooks changed, changed back; None if it is no such dump."""
    if f"{CHANGED}/batch_sizes" not in archive.names():
        return None
    folder = archive.folder
    if not hooks:
        raise ValueError(
            f"{folder} was written by save hooks: register the load hooks that belong to them."
        )
    rows: Any = _rows_of(archive.read(CHANGED), folder)
    for hook in hooks:
        rows = hook(_tensordict(rows, hook))
    _require_room(storage, _tensordict(rows, hooks[-1]), folder)
    if isinstance(storage, TensorStorage):
        plan_of(storage, rows)  # as long as the former ones are there
    ring = archive.read("ring")
    if not ring:  # of an older version
        return ChangedRows(rows, None, 0, 0)
    first, capacity = ring.get("first"), ring.get("capacity", 0)
    window = checked_window(folder, first, ring.get("counts"), first, capacity)
    is_whole = len(window.first) == 1 and window.counts[0] == rows.numel()
    oldest = window.first[0] if is_whole else None
    return ChangedRows(rows, oldest, capacity, len(window.first))


def put_rows(storage: Storage, found: ChangedRows) -> None:
    """Replaces the rows of a storage, which get their former ids if it is of the same size."""
    same = (storage.max_size, len(storage.ring.window().first)) == (found.capacity, found.lanes)
    keeps_ids = found.first is not None and found.lanes == 1
    if keeps_ids and storage.session.table is None:
        storage.extend(found.rows)  # what rows are like, and so how many there is room for
        same = storage.max_size == found.capacity
    storage.empty()
    if keeps_ids and same:
        assert found.first is not None  # ids are kept
        storage.ring.restore(found.first, found.first)
    storage.extend(found.rows)


def _by_age(storage: Storage) -> torch.Tensor:
    """The positions of the rows, the oldest first: `[N]`, or `[*B, T]` for `ndim` above 1."""
    positions = positions_by_age(storage.ring)
    if storage.ndim == 1:
        return positions
    return positions.view(-1, *storage.columns).transpose(0, storage.arrangement.dim_extend)


def _parts_of(rows: TensorDictBase) -> dict[str, Any]:
    """A tensordict as parts of a dump; jagged leaves as values and offsets."""
    jagged: dict[str, Any] = {}

    def plain(group: TensorDictBase, path: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in group.items():
            if isinstance(value, TensorDictBase):
                found[name] = plain(value, (*path, name))
            elif isinstance(value, torch.Tensor) and value.layout is torch.jagged:
                nested: Any = value
                found[name] = nested.values()
                jagged[str(len(jagged))] = {"path": [*path, name], "offsets": nested.offsets()}
            else:
                found[name] = value
        return found

    sizes = [[[], list(rows.batch_size)]]
    for key, value in rows.items(include_nested=True):
        if isinstance(value, TensorDictBase):
            sizes.append([list(as_tuple(key)), list(value.batch_size)])
    return {"rows": plain(rows, ()), "batch_sizes": sizes, "jagged": jagged}


def _rows_of(parts: dict[str, Any], folder: Path) -> TensorDict:
    """The tensordict of parts that `_parts_of` made."""
    try:
        rows = TensorDict(parts["rows"])
        for entry in parts["jagged"].values():
            key = tuple(entry["path"])
            rows[key] = torch.nested.nested_tensor_from_jagged(rows[key], entry["offsets"])
        for key, size in parts["batch_sizes"]:
            group = rows[tuple(key)] if key else rows
            group.batch_size = torch.Size(size)
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"the parts of {folder} make no rows: {error}. Restore it from a copy."
        ) from error
    return rows


def _require_room(storage: Storage, rows: TensorDictBase, folder: Path) -> None:
    lanes = len(storage.ring.window().first)
    limit = storage.max_size // lanes
    if isinstance(storage, TensorStorage) and rows.batch_dims == storage.ndim:
        columns = storage.arrangement.columns(rows.batch_size)
        limit = storage.capacity_for(columns) // lanes
    if not 0 < rows.numel() <= limit:
        raise ValueError(
            f"{folder} holds {rows.numel()} rows and this buffer takes 1 to {limit} at once: make "
            "a larger one."
        )


def _tensordict(rows: Any, hook: Hook | None) -> TensorDictBase:
    if not isinstance(rows, TensorDictBase):
        who = "the hook" if hook is None else repr(hook)
        raise TypeError(f"{who} works on tensordicts, got {type(rows).__name__}.")
    return rows
