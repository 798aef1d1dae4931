"""Fast construction, entry access and key helpers for tensordicts."""

from rl_tensordict.construction import Entries, checked, entries_of, finished
from rl_tensordict.construction import put as insert
from rl_tensordict.entries import build, find, nest, put, tensors
from rl_tensordict.nested_keys import NestedKey, as_key, as_tuple, leaves, require, sibling

__all__ = [
    "Entries",
    "NestedKey",
    "as_key",
    "as_tuple",
    "build",
    "checked",
    "entries_of",
    "find",
    "finished",
    "insert",
    "leaves",
    "nest",
    "put",
    "require",
    "sibling",
    "tensors",
]
