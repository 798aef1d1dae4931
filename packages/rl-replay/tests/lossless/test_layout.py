"""Which leaves lossless rows store, by hand."""

from __future__ import annotations

import pytest
import torch

from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.rows import LosslessRows
from rl_slabs import RowSchema

OBSERVATION = (torch.float32, (3,))
PAIR = RowSchema({"observation": OBSERVATION, ("next", "observation"): OBSERVATION})


def test_next_observations_are_stored_in_slots_alone() -> None:
    layout = LosslessLayout(PAIR)
    assert list(layout.stored) == ["observation", "_successor"]
    assert list(layout.side) == ["0.observation"]
    assert layout.joins
    assert not layout.apart


def test_batches_may_come_without_next_observations() -> None:
    layout = LosslessLayout(RowSchema({"observation": OBSERVATION}), ["observation"])
    fields, observes = layout.coming([("observation",)])
    assert (len(fields), observes) == (1, False)


def test_rows_and_slots_beyond_the_addresses_are_refused() -> None:
    layout = LosslessLayout(PAIR)
    layout.require_addresses(1_000_000_000)
    with pytest.raises(ValueError, match="a lossless storage holds at most"):
        layout.require_addresses(1 << 31)


def test_unwritten_rows_address_nothing() -> None:
    rows = LosslessRows.zeros(RowSchema({"a": (torch.bool, ())}), 5, keys=["a"])
    assert rows.successor_of(slice(0, 3)).tolist() == [0, 0, 0]
    rows.expect(misses=True, reach=3)
    assert (rows.misses, rows.reach) == (True, 3)
    rows.clear()
    assert rows.side.in_use() == 0


def test_the_cost_of_a_row_includes_its_address() -> None:
    schema = RowSchema({"observation": (torch.float64, (3,))})
    cost = LosslessRows.zeros(schema, 5, keys=["observation"]).explain(0)
    assert (cost["row_bytes"], cost["side_slots"]) == (28, 0)
