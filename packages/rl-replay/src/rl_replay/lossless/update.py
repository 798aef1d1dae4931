"""Updates of lossless rows in place: the next observations of all other rows stay as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout.keys import NEXT_MISSING
from rl_replay.lossless.layout import LosslessLayout, ObservationPair
from rl_replay.lossless.linker import Addresses, SuccessorLinker
from rl_slabs import Rows
from rl_slabs.internals import leaves_of, match_fields
from rl_tensordict.types import Ints


def update_rows(
    linker: SuccessorLinker,
    rows: Rows,
    index: torch.Tensor,
    numbers: Ints,
    cells: TensorDictBase,
    back: NDArray[np.integer[Any]],
) -> None:
    """Implements `LosslessRows.update`; positions are `[n]`."""
    layout, addresses = linker.layout, linker.addresses
    leaves = leaves_of(cells)
    mark = None if layout.has_mark else leaves.pop(NEXT_MISSING, None)
    match_fields(cells, layout.schema.select(list(leaves)), index.shape, exact=False)
    positions = index.cpu().numpy()
    # predecessors keep the observation as it was: they get slots before it changes
    roots = any(pair.root in leaves for pair in layout.pairs)
    nexts = [pair for pair in layout.pairs if pair.next in leaves]
    observed = _observed(addresses, positions, mark)
    rows.touches += 1
    if roots:
        linker.materialize(*addresses.predecessors_of(positions, numbers))
    if nexts and observed.size:
        _require_all(layout, addresses, nexts, positions[observed])
        linker.materialize(positions[observed], numbers[observed])
        # after `materialize` every address is a slot of its own, no row
        slots = addresses.slots(addresses.values[positions[observed]])
        linker.side.write(slots, linker.observations.given(nexts, leaves, observed))
    stored = [path for path in leaves if path in layout.stored]
    if stored:
        rows.write(index, cells, keys=stored)
    if roots or nexts:
        distances = np.asarray(back, dtype=np.int64)
        # updated observations may equal what their predecessors keep in slots
        older = distances > 0
        linker.link(positions[older], (numbers - distances)[older], 1, missing=False)


def _observed(addresses: Addresses, positions: Ints, mark: torch.Tensor | None) -> Ints:
    """Indices of the updated rows that are given a next observation."""
    if mark is None:
        return np.arange(len(positions))
    missing = mark.cpu().numpy().reshape(-1)
    # an address of 0 means no next observation
    if (missing & (addresses.values[positions] != 0)).any():
        raise ValueError(
            f"{NEXT_MISSING} is True in rows that have a next observation, which cannot be "
            "taken from them: leave the mark out, or as it was read."
        )
    return np.flatnonzero(~missing)


def _require_all(
    layout: LosslessLayout,
    addresses: Addresses,
    nexts: Sequence[ObservationPair],
    positions: Ints,
) -> None:
    if len(nexts) < len(layout.pairs) and (addresses.values[positions] == 0).any():
        raise KeyError(
            "rows that have no next observation get a whole one or none: give all of "
            f"{[pair.next for pair in layout.pairs]}."
        )
