"""Flat trajectory batches: where they begin and end, and every view of them."""

from rl_layout import keys
from rl_layout.carried_states import refuse_shared_states
from rl_layout.checks.check_layout import check_layout
from rl_layout.checks.report import Finding, LayoutError, LayoutReport
from rl_layout.convert.apart import H5Combine, H5Split
from rl_layout.convert.split import (
    join_trajectories,
    nest_trajectories,
    pad_trajectories,
    split_trajectories,
)
from rl_layout.convert.step_mdp import step_mdp
from rl_layout.convert.ted import Flat2TED, Nested2TED, TED2Flat, TED2Nested
from rl_layout.draw import Bar, LayoutDrawing, draw_layout
from rl_layout.recurrent_mode import recurrent_mode, set_recurrent_mode
from rl_layout.row_source import BatchRows, RowSource
from rl_layout.segments.contradiction import (
    Comparison,
    compare_neighbours,
    contradictions,
    is_observed,
)
from rl_layout.segments.end_kind import EndKind
from rl_layout.segments.markers import Markers, must_compare_observations
from rl_layout.segments.segments import Segments
from rl_layout.segments.time_blocks import TimeBlock

__all__ = [
    "Bar",
    "BatchRows",
    "Comparison",
    "EndKind",
    "Finding",
    "Flat2TED",
    "H5Combine",
    "H5Split",
    "LayoutDrawing",
    "LayoutError",
    "LayoutReport",
    "Markers",
    "Nested2TED",
    "RowSource",
    "Segments",
    "TED2Flat",
    "TED2Nested",
    "TimeBlock",
    "check_layout",
    "compare_neighbours",
    "contradictions",
    "draw_layout",
    "is_observed",
    "join_trajectories",
    "keys",
    "must_compare_observations",
    "nest_trajectories",
    "pad_trajectories",
    "recurrent_mode",
    "refuse_shared_states",
    "set_recurrent_mode",
    "split_trajectories",
    "step_mdp",
]
