from __future__ import annotations

import pytest
from tensordict import TensorDict

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import FrameSkip


def test_reward_bounds_cover_sums_of_one_to_all_frames():
    spec = Composite(reward=Bounded(-0.5, 1.0, (2, 1)), bonus=Bounded(2.0, 3.0, (2, 1)), shape=(2,))
    found = FrameSkip(4).transform_reward_spec(spec)
    ends = {name: (float(found[name].low.min()), float(found[name].high.max())) for name in spec}
    assert ends == {"reward": (-2.0, 4.0), "bonus": (2.0, 12.0)}
    free = Composite(reward=Unbounded((1,)))
    assert FrameSkip(4).transform_reward_spec(free) is free


def test_forward_returns_rows_unchanged():
    rows = TensorDict({}, [3])
    assert FrameSkip(4)(rows) is rows


def test_invalid_frame_skip_and_place_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        FrameSkip(0)
    with pytest.raises(ValueError, match="cannot sit in a buffer"):
        FrameSkip(2).check_place("buffer")
