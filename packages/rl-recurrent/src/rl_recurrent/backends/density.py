"""Whether a batch is a dense block without padding."""

from __future__ import annotations

from rl_layout import Segments


def is_dense(segments: Segments) -> bool:
    """Tell whether there are segments, all of one length: their rows are then ``[S, T]``."""
    return 0 < segments.num_real == segments.max_length * len(segments)
