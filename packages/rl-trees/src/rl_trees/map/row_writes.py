"""Values of numbered rows, written to a storage."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_replay import Storage
from rl_tensordict.types import Flags, Ints
from rl_trees.table.key_table import KeyTable


def write_rows(
    storage: Storage, table: KeyTable, rows: Ints, added: Flags, values: TensorDictBase
) -> None:
    """Stores the last value `[N]` of each row: new rows in order, then changes of others."""
    # rows after the last key are left of an interrupted write, and are written over
    before = len(storage)
    if added.all() and rows[0] == before:
        storage.extend(values)
        return
    latest = table.latest(rows)
    if latest.all() and rows.max() < before:
        storage.replace(torch.from_numpy(rows), values)
        return
    fresh = np.flatnonzero(latest & (rows >= before))
    if len(fresh):
        places = np.empty_like(fresh)
        places[rows[fresh] - before] = fresh  # in the order of rows
        storage.extend(at(values, places))
    changed = np.flatnonzero(latest & (rows < before))
    if len(changed):
        storage.replace(torch.from_numpy(rows[changed]), at(values, changed))


def at(values: TensorDictBase, places: NDArray[np.int64]) -> TensorDictBase:
    """Rows at some places; all rows in order are not copied."""
    if len(places) == len(values) and (places == np.arange(len(places))).all():
        return values
    return values[torch.from_numpy(places)]
