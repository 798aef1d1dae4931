"""Row stores and the staging row, by hand."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict

from rl_replay.data.dicts import DictReader
from rl_replay.data.staged_row import Readers
from rl_replay.data.structure import Structure
from rl_replay.storages.row_store import PlainFewRows, PlainRows
from rl_slabs import Rows, RowSchema, Span
from rl_slabs.internals import TensordictReader


def readers(schema: RowSchema) -> Readers:
    return Readers(TensordictReader(schema), DictReader(schema, Structure("tensordict")))


SCHEMA = RowSchema({"reward": (torch.float32, (1,))})


def test_plain_rows_are_read_where_they_were_written() -> None:
    store = PlainRows(Rows.zeros(SCHEMA, 5))
    row = TensorDict({"reward": torch.ones(1, 1)}, batch_size=[1])
    store.write(slice(0, 1), range(1), row, np.zeros(1))
    assert store.read(torch.tensor([1, 0]))["reward"].flatten().tolist() == [0.0, 1.0]


def test_the_cost_of_a_row_is_rounded_up_to_whole_words() -> None:
    store = PlainRows(Rows.zeros(RowSchema({"done": (torch.bool, (1,))}), 5))
    assert store.explain(0) == {"row_bytes": 8}


def test_a_staged_row_is_written_to_its_position() -> None:
    rows = Rows.zeros(SCHEMA, 5)
    one_row = PlainFewRows(rows, readers(rows.schema))
    taken = one_row.take(TensorDict({"reward": torch.ones(1)}))
    assert taken is not None
    assert taken["reward"].tolist() == [1.0]
    one_row.write(Span(slice(2, 3), range(2, 3)), np.zeros(1, np.int32))
    assert rows.read(2)["reward"].tolist() == [1.0]
