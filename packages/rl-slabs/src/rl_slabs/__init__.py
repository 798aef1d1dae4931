"""Rows of tensors in private, shared or mapped memory, written by many processes."""

from rl_slabs.lanes.lane import Lane, Span
from rl_slabs.lanes.lanes import Lanes, LaneState
from rl_slabs.lanes.window import Window
from rl_slabs.memory.arrays import Arrays
from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.memory.slab import Slab
from rl_slabs.rows.packed_rows import PackedRows
from rl_slabs.rows.rows import Rows
from rl_slabs.schema import Field, HasZero, RowSchema

__all__ = [
    "Arrays",
    "Field",
    "HasZero",
    "Lane",
    "LaneState",
    "Lanes",
    "LazyFile",
    "PackedRows",
    "RowSchema",
    "Rows",
    "Slab",
    "Span",
    "Window",
]
