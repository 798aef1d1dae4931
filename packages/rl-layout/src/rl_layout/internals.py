"""What other packages of this family take from rl-layout alongside its exports.

Made for siblings, which ask for a range of versions: a name changes with the minor version only.
"""

from rl_layout.compiled import LEAST_ROWS, is_of_use, load_compiled, run_compiled
from rl_layout.extras import import_with_hypothesis
from rl_layout.recurrent_mode import MODE
from rl_layout.reference import MarkedRow, continues, marked_rows
from rl_layout.segments.flat_views import flatten
from rl_layout.segments.markers import (
    FIELDS,
    array_of,
    batch_shape,
    cut_between,
    flat_marker,
    marker_leaves,
)
from rl_layout.segments.segments import segments_of
from rl_layout.segments.torch_cuts import cut_by_torch

__all__ = [
    "FIELDS",
    "LEAST_ROWS",
    "MODE",
    "MarkedRow",
    "array_of",
    "batch_shape",
    "continues",
    "cut_between",
    "cut_by_torch",
    "flat_marker",
    "flatten",
    "import_with_hypothesis",
    "is_of_use",
    "load_compiled",
    "marked_rows",
    "marker_leaves",
    "run_compiled",
    "segments_of",
]
