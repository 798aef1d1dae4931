"""Samples that are stored again: the markers that sampling added to them."""

from __future__ import annotations

from dataclasses import replace

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.data.structure import Batch
from rl_replay.linking.markers import Extent, MarkerKeys
from rl_slabs import RowSchema
from rl_tensordict import NestedKey, find


def is_sample(data: TensorDictBase) -> bool:
    """Whether data are a sample of a buffer."""
    return find(data, keys.ROW) is not None


def without_own_marks(
    batch: Batch, schema: RowSchema, known: MarkerKeys
) -> tuple[Batch, MarkerKeys]:
    """Rows of a sample without the flags that sampling added to it, which cut all the same."""
    # Padding is left out where the storage has no mask to mark it by.
    cells = batch.cells

    def added(key: NestedKey) -> bool:
        return key not in schema and cells.get(key, None) is not None

    init = keys.IS_INIT if added(keys.IS_INIT) else known.init
    ends = tuple(key for key in keys.NEXT_DONE_KEYS if added(key))
    marks = replace(known, init=init, ends=(*known.ends, *ends))
    if added(keys.MASK):
        cells = cells[cells.get(keys.MASK)].exclude(keys.MASK)
        count = len(cells)
        batch = Batch(cells, torch.Size([count]), Extent(count, 1, count))
    return batch, marks
