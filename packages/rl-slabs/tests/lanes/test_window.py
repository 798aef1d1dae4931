import pytest
import torch

from rl_slabs import Window

ONE = Window((3,), (5,))
SHIFT = 1 << 48
THREE = Window((4, SHIFT, 2 * SHIFT + 9), (2, 0, 3))


def test_places_of_one_lane_count_from_its_oldest_row():
    assert ONE.numbers(torch.tensor([[0, 4]])).tolist() == [[3, 7]]


def test_places_run_through_all_lanes_and_skip_empty_ones():
    found = THREE.numbers(torch.arange(5))
    assert found.tolist() == [4, 5, 2 * SHIFT + 9, 2 * SHIFT + 10, 2 * SHIFT + 11]


@pytest.mark.parametrize("place", [-1, 5])
def test_a_place_outside_is_refused(place):
    for window in (ONE, THREE):
        with pytest.raises(ValueError, match=r"\[0, 5\), the rows that are published"):
            window.numbers(torch.tensor([place]))


def test_every_row_is_drawn_about_equally_often():
    counts = THREE.draw(5000).unique(return_counts=True)[1]
    assert len(counts) == 5
    assert counts.min() > 850


def test_a_draw_is_repeated_by_its_generator():
    draws = [THREE.draw(7, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert draws[0].equal(draws[1])


def test_empty_windows_yield_no_row():
    empty = Window((3,), (0,))
    assert empty.numbers(torch.tensor([], dtype=torch.int64)).numel() == 0
    with pytest.raises(ValueError, match="there is no row to draw"):
        empty.draw(2)
