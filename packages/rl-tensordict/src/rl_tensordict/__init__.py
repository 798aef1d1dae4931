"""Tensordicts without the overhead: construction, reads, writes, leaves, and modules as calls."""

from rl_tensordict.construction import Entries, build, build_flat, insert
from rl_tensordict.dense_leaves import Leaves, leaves_of
from rl_tensordict.dimensions import Dimensions, Group
from rl_tensordict.entries import (
    copied,
    device_of_data,
    entries_of,
    find,
    lies_on,
    names_of,
    put,
    put_group,
    put_leaves,
    require,
)
from rl_tensordict.errors import UnfitValue, UnknownName
from rl_tensordict.flatten import leaves, nest, tensors
from rl_tensordict.host import CPU, as_tensor, draw_seed
from rl_tensordict.module_calls import Call, ModuleCalls
from rl_tensordict.nested_keys import as_key, as_tuple, is_key, sibling
from rl_tensordict.notes import add_notes, note_call, note_errors
from rl_tensordict.step_sequence import StepSequence
from rl_tensordict.tensor_step import TensorStep, outputs_of, write_step
from rl_tensordict.types import NestedKey
from rl_tensordict.verified_calls import VerifiedCalls

__all__ = [
    "CPU",
    "Call",
    "Dimensions",
    "Entries",
    "Group",
    "Leaves",
    "ModuleCalls",
    "NestedKey",
    "StepSequence",
    "TensorStep",
    "UnfitValue",
    "UnknownName",
    "VerifiedCalls",
    "add_notes",
    "as_key",
    "as_tensor",
    "as_tuple",
    "build",
    "build_flat",
    "copied",
    "device_of_data",
    "draw_seed",
    "entries_of",
    "find",
    "insert",
    "is_key",
    "leaves",
    "leaves_of",
    "lies_on",
    "names_of",
    "nest",
    "note_call",
    "note_errors",
    "outputs_of",
    "put",
    "put_group",
    "put_leaves",
    "require",
    "sibling",
    "tensors",
    "write_step",
]
