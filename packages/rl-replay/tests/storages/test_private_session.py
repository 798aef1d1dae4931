"""The ring of one process, by hand."""

from __future__ import annotations

import pytest
import torch

from rl_replay.storages.private_session import PrivateRing


@pytest.fixture
def ring() -> PrivateRing:
    """Five positions, rows 3 to 6 live."""
    ring = PrivateRing(5)
    ring.restore(published=7, floor=3)
    return ring


def test_a_span_over_the_end_continues_at_position_0() -> None:
    ring = PrivateRing(5)
    ring.reserve(4)
    ring.publish(4)
    span = ring.reserve(2)
    assert (span.rows.tolist(), span.numbers) == ([4, 0], range(4, 6))


def test_rows_are_read_only_after_publication() -> None:
    ring = PrivateRing(5)
    assert ring.reserve(2).rows == slice(0, 2)
    assert len(ring.window()) == 0
    ring.publish(2)
    assert (ring.window().first, ring.window().counts) == ((0,), (2,))


@pytest.mark.parametrize("published", range(3, 13))
def test_positions_have_the_newest_rows_on_every_lap(published: int) -> None:
    ring = PrivateRing(5)
    ring.restore(published=published, floor=0)
    newest = {number % 5: number for number in range(published)}
    for dtype in (torch.int64, torch.int32):
        found = ring.numbers_at(torch.arange(5, dtype=dtype))
        assert found.tolist() == [newest.get(at, -1) for at in range(5)]
    outside = torch.tensor([-1, 6])
    assert ring.numbers_at(outside).tolist() == [newest.get(at, -1) for at in (4, 1)]


def test_a_cancelled_span_leaves_the_old_rows() -> None:
    ring = PrivateRing(5)
    ring.restore(published=5, floor=0)
    ring.reserve(2)
    ring.cancel()
    assert ring.window().counts == (5,)


def test_positions_and_row_ids_map_to_each_other(ring) -> None:
    assert ring.positions(torch.tensor([3, 6])).tolist() == [3, 1]
    assert ring.numbers_at(torch.arange(5)).tolist() == [5, 6, -1, 3, 4]


def test_row_ids_outside_of_the_window_are_refused(ring) -> None:
    live = ring.is_live(torch.tensor([2, 3, 6, 7]))
    assert live.tolist() == [False, True, True, False]


def test_a_restored_ring_holds_at_most_its_capacity() -> None:
    ring = PrivateRing(5)
    ring.restore(published=8, floor=0)
    assert (ring.window().first, ring.window().counts) == ((3,), (5,))


def test_an_emptied_ring_begins_at_position_0_with_new_row_ids(ring) -> None:
    ring.empty()
    span = ring.reserve(2)
    assert len(ring.window()) == 0
    assert (span.rows, span.numbers) == (slice(0, 2), range(10, 12))


def test_floor_is_the_first_row_since_the_ring_was_emptied_or_restored():
    ring = PrivateRing(5)
    ring.reserve(4), ring.publish(4)
    ring.reserve(4), ring.publish(4)
    assert (ring.floors(), ring.window().first) == ((0,), (3,))
    ring.empty()
    assert ring.floors() == ring.window().first == (10,)
    ring.restore(9, 7)
    assert ring.floors() == (7,)
