"""Tensordicts without the overhead: construction, reads, writes and flat leaves."""

from rl_tensordict.construction import Entries, build, build_flat
from rl_tensordict.entries import entries_of, find, insert, names_of, put, require
from rl_tensordict.flatten import leaves, nest, tensors
from rl_tensordict.nested_keys import NestedKey, as_key, as_tuple, is_key, sibling

__all__ = [
    "Entries",
    "NestedKey",
    "as_key",
    "as_tuple",
    "build",
    "build_flat",
    "entries_of",
    "find",
    "insert",
    "is_key",
    "leaves",
    "names_of",
    "nest",
    "put",
    "require",
    "sibling",
    "tensors",
]
