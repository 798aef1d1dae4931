"""Rows that are read while others write, link or fill slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_replay.testing.observed_rows import filled, plain_batch, put, update
from rl_slabs import Rows


def in_memory(kind):
    """What `filled` returns, its slots after its rows or apart from them."""
    rows = filled()
    if kind == "apart":
        layout = rows.layout
        rows = LosslessRows(layout, Rows.zeros(layout.stored, 9), OverflowTable(layout.side, 9))
        batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
        put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    assert rows.joined == (kind == "joined")
    return rows


def while_read(rows, act):
    """Call `act` between the look-up of the rows' addresses and the read."""
    name = "addresses_of" if rows.joined else "on_cpu"
    found = getattr(rows.reader, name)

    def separate(*args):
        if rows.joined:
            addresses = found(*args).copy()
            act()
            return addresses
        act()
        return found(*args)

    setattr(rows.reader, name, separate)


@pytest.mark.parametrize("kind", ["joined", "apart"])
def test_a_slot_that_is_somebody_elses_by_now_is_not_valid(kind):
    rows = in_memory(kind)
    index = torch.arange(6)
    good, valid = rows.read_concurrent(index, index)
    assert valid.all()
    assert (good == rows.read(index)).all()
    rows.side.owners[~rows.successor[5]] = 70
    _, valid = rows.read_concurrent(index, index)
    assert valid.tolist() == [True] * 5 + [False]


def go_on(rows):
    put(rows, 6, plain_batch(torch.tensor([6.0]), torch.tensor([7.0]), [5], [6]), [1])


@pytest.mark.parametrize("kind", ["joined", "apart"])
def test_a_row_that_was_linked_while_it_was_read_is_not_valid(kind):
    rows = in_memory(kind)
    index = torch.arange(6)
    while_read(rows, lambda: go_on(rows))
    _, valid = rows.read_concurrent(index, index)
    assert valid.tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("kind", ["joined", "apart"])
def test_linking_alone_takes_no_bits_from_who_reads_meanwhile(kind):
    rows = in_memory(kind)
    index = torch.arange(6)
    number = range(6, 7)
    row = plain_batch(torch.tensor([6.0]), torch.tensor([7.0]), [5], [6])
    rows.write(slice(6, 7), number, row, np.array([1]))
    slot = ~rows.successor[5]
    while_read(rows, lambda: rows.linker.link_predecessors(number))
    found, valid = rows.read_concurrent(index, index, unchanged=lambda: True)
    assert valid.all()
    assert found["next", "observation"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows.successor[5] == 1
    assert rows.side.owners[slot] < 0  # given back, but not filled again


@pytest.mark.parametrize("kind", ["joined", "apart"])
def test_a_row_whose_successor_was_written_in_place_while_it_was_read_is_not_valid(kind):
    rows = in_memory(kind)
    index = torch.arange(6)
    while_read(rows, lambda: update(rows, [2], {"observation": torch.tensor([70.0])}))
    _, valid = rows.read_concurrent(index, index)
    assert valid.tolist() == [True, False, True, True, True, True]


def test_some_leaves_and_rows_of_any_shape_are_read_concurrently():
    rows = filled()
    index = torch.tensor([[5, 0], [3, 3]])
    key = ("next", "observation")
    for unmoved in (None, lambda: True):
        found, valid = rows.read_concurrent(index, index.flatten(), keys=[key], unchanged=unmoved)
        assert found[key].tolist() == [[6, 1], [4, 4]]
        assert valid.all()
    found, valid = rows.read_concurrent(index, index.flatten(), keys=["observation"])
    assert found["observation"].tolist() == [[5, 0], [3, 3]]
    assert valid.all()
