"""Segments in compiled code: they break the graph and are those found outside of it."""

import pytest
import torch

from rl_layout import Markers, Segments
from rl_layout.segments.torch_cuts import cut_rows
from rl_layout.synthetic import trajectories


@pytest.mark.parametrize("lengths", [[4, 5], [1500, 1000]])  # by numpy, and by numba if installed
def test_segments_can_be_found_in_a_compiled_function(lengths):
    torch.compiler.reset()
    found = torch.compile(lambda batch: Segments.of(batch).lengths * 2, backend="eager")
    assert found(trajectories(lengths)).tolist() == [2 * length for length in lengths]


def test_cuts_can_be_found_in_a_compiled_function():
    torch.compiler.reset()

    def cuts(batch):
        return cut_rows(Markers.of(batch)).sum() * 2

    assert torch.compile(cuts, backend="eager")(trajectories([4, 5])) == 4
