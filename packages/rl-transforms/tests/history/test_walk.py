from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import Segments
from rl_layout.reference import ListRowSource
from rl_layout.testing import flat_batches
from rl_transforms.history.walk import walk_by, walk_to_end


@settings(max_examples=30)
@given(flat_batches(max_rows=20), st.data())
def test_walk_ends_at_the_ends_of_segments(batch, data):
    segments, source = Segments.of(batch), ListRowSource(batch)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=7)))
    for find, ends, sign in (
        (source.after, segments.lasts, 1),
        (source.before, segments.starts, -1),
    ):
        wanted = segments.spread(ends)[rows]
        found, far = walk_to_end(rows, find)
        assert torch.equal(found, wanted)
        assert torch.equal(far, (wanted - rows) * sign)
        some = (far * data.draw(st.floats(0, 1))).long()
        assert torch.equal(walk_by(rows, some, find), rows + sign * some)
