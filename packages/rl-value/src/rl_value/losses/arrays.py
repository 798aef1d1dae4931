"""Tensors as arrays, where nothing but this call looks at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]


def array_of(values: Tensor | None, dtype: torch.dtype) -> Array | None:
    """The memory of a tensor as an array, where it can be had and has this dtype."""
    if not isinstance(values, Tensor) or type(values) not in (Tensor, nn.Parameter):
        return None
    if values.dtype != dtype or not values.is_cpu:
        return None
    found: Array = (values.detach() if values.requires_grad else values).numpy()
    return found


def is_eager() -> bool:
    """Whether arrays may be looked into: nothing compiles, traces or transforms what is called."""
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not traced and not torch._C._are_functorch_transforms_active()
