"""Values of a composite: dictionaries and tensordicts, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl_specs.core.tensor_spec import TensorSpec
from rl_specs.leaves.non_tensor import NonTensor

MISSING = object()


def is_dict(val: Any) -> bool:
    """Tell a dictionary, which has no batch size, from a tensordict."""
    # a tensordict is a mapping as well
    return isinstance(val, Mapping) and not isinstance(val, TensorDictBase)


def has_entries(val: Any) -> bool:
    """Tell whether a value has named entries."""
    return is_dict(val) or (is_tensor_collection(val) and not is_non_tensor(val))


def require_entries(val: Any) -> None:
    """Raise for a value without named entries."""
    if not has_entries(val):
        msg = f"expected a dictionary or a tensordict: got {type(val).__name__}"
        raise TypeError(msg)


def read_entry(val: Any, name: Any) -> Any:
    """Read an entry, or raise if it is missing."""
    entry = val.get(name, MISSING)
    if entry is MISSING:
        msg = f"the entry {name!r} is missing: found {list(val.keys())}. Add it first."
        raise KeyError(msg)
    return entry


def encode_entry(name: str, spec: TensorSpec | None, value: Any, ignore_device: bool) -> Any:
    """Encode an entry; an error names it."""
    if spec is None:
        return value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    if value is None and not isinstance(spec, NonTensor):
        msg = f"the entry {name!r} is None: leave it out, or give it a NonTensor spec"
        raise ValueError(msg)
    try:
        return spec.encode(value, ignore_device=ignore_device)
    except (ValueError, TypeError) as error:
        msg = f"entry {name!r}: {error}"
        raise type(error)(msg) from None


def plain_entry(val: Any, name: str) -> Any:
    """Read an entry without a spec as a plain value."""
    entry = val.get(name)
    return entry.detach().cpu().numpy() if isinstance(entry, Tensor) else entry
