"""Flat trajectory batches: where they begin and end, and every view of them."""

from rl_layout import keys
from rl_layout.end_kind import EndKind
from rl_layout.markers import Markers
from rl_layout.segments import Segments
from rl_layout.time_blocks import TimeBlock

__all__ = ["EndKind", "Markers", "Segments", "TimeBlock", "keys"]
