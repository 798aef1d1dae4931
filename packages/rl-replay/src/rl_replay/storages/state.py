"""The contents of a storage of tensors in memory, for `torch.save`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.storages.row_store import RowStore
from rl_replay.storages.session import Session
from rl_slabs import RowSchema


def state_of(session: Session) -> dict[str, Any]:
    """A copy of every row, the bounds of the ring, and the links."""
    table = session.table
    if session.is_open or table is None:
        return {"rows": None}
    window = session.ring.window()
    positions = session.ring.positions(window.numbers(torch.arange(len(window), device="cpu")))
    rows = table.store.read(positions.to(table.device), contiguous=True)
    back, index = table.links.back[positions.numpy()], session.index_state()
    structure, came, columns = table.layout[:3]
    floor, order = session.floor_since(window), session.lane_order()
    head = Contents(structure, came, columns, window, index, floor, order)
    links = {"back": torch.from_numpy(back)}  # no arrays, which torch.load takes for pickles
    leaves = {"rows": rows.to_dict(), "came": [list(field.path) for field in came.fields]}
    return head.state(session.ring.capacity) | leaves | links


def restored(
    session: Session, state: Mapping[str, Any], cells: TensorDict, schema: RowSchema
) -> tuple[Contents, FillRows]:
    """What `state_of` copied, for another storage: the contents, and what writes the rows."""
    back = torch.as_tensor(state["back"], device="cpu").numpy()
    contents = Contents.of_state(state, schema)
    room, lanes = session.capacity_for(contents.columns), session.lanes
    contents = contents.in_room(state["capacity"], room, lanes)

    def fill(store: RowStore, links: NDArray[np.int32]) -> None:
        for run in contents.runs():
            positions, offsets = run.positions(room // lanes), back[run.rows]
            offsets = run.inside(offsets) if contents.joins else offsets
            links[positions] = offsets
            store.write(torch.from_numpy(positions), run.numbers, cells[run.rows], offsets)
            if store.linker is not None:
                store.linker.link_predecessors(run.numbers)

    return contents, fill
