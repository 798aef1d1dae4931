"""Rows of tensors in private, shared or mapped memory, written by many processes."""

from rl_slabs.arrays import Arrays
from rl_slabs.lane import Lane, Span
from rl_slabs.lanes import Lanes, LaneState
from rl_slabs.lazy_file import LazyFile
from rl_slabs.lazy_slab import LazySlab
from rl_slabs.rows import Rows
from rl_slabs.schema import Field, HasZero, RowSchema
from rl_slabs.slab import Slab
from rl_slabs.window import Window

__all__ = [
    "Arrays",
    "Field",
    "HasZero",
    "Lane",
    "LaneState",
    "Lanes",
    "LazyFile",
    "LazySlab",
    "RowSchema",
    "Rows",
    "Slab",
    "Span",
    "Window",
]
