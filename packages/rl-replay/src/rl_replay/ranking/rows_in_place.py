"""Rows of a private storage that are replaced out of order, and continue no other row."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_replay.storages import TensorStorage
from rl_replay.storages.private_session import PrivateSession
from rl_slabs import Span


def overwrite(storage: TensorStorage, places: torch.Tensor, rows: TensorDictBase) -> None:
    """Replaces whole rows at some positions; all rows get other row ids."""
    session, table = storage.session, storage.session.rows
    assert isinstance(session, PrivateSession)  # the writer refuses the others
    cells = table.layout.structure.take_apart(rows, storage.arrangement).cells
    back = np.zeros(len(places), np.int32)
    table.store.write(places, range(0), table.with_casts(cells), back)
    table.links.back[places.numpy()] = 0
    session.renumber()


def unlink(storage: TensorStorage, span: Span | None) -> None:
    """Lets the rows of a write, or all rows, continue no other row."""
    links = storage.session.rows.links
    links.back[slice(None) if span is None else span.rows] = 0
    links.forget()
